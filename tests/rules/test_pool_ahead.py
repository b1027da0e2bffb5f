"""pool-ahead: a pool of threads runs ahead of what takes its results, and all of them wait."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait

import torch

from tests.rules.recorded import findings_of, names

ITEMS, SIZE = 24, 65_536


def made(number):
    return torch.full((SIZE,), float(number))


def fires():
    """Everything is made before the first result is taken; each step takes one."""
    pool = ThreadPoolExecutor(2)
    results = pool.map(made, range(ITEMS))
    pool.shutdown(wait=True)

    def step(number):
        return next(results).sum().item()

    return step


def submitted():
    """The same with futures that go one by one."""
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(made, number) for number in range(ITEMS)]
        wait(futures)

    def step(number):
        return futures.pop(0).result().sum().item()

    return step


def looks_alike():
    """All results are wanted together."""

    def step(number):
        with ThreadPoolExecutor(2) as pool:
            parts = list(pool.map(made, range(ITEMS)))
        return torch.stack(parts).sum().item()

    return step


def few_ahead():
    """Two are under way at any time."""
    pool = ThreadPoolExecutor(2)
    waiting = [pool.submit(made, number) for number in range(2)]

    def step(number):
        waiting.append(pool.submit(made, number))
        return waiting.pop(0).result().sum().item()

    return step


def test_results_that_wait_are_told_at_the_line_that_hands_all_in(tmp_path):
    (found, *_) = findings_of(fires, tmp_path / "run.json")
    assert (found.rule, found.minor) == ("pool-ahead", False)
    (remedy,) = found.remedies
    assert remedy.fix == "bound_queue"
    assert remedy.saves_bytes > 0.6 * found.bytes
    assert found.bytes >= 8 * SIZE * 4


def test_futures_of_a_comprehension_are_told_as_well(tmp_path):
    (found, *_) = findings_of(submitted, tmp_path / "run.json")
    assert (found.rule, found.minor) == ("pool-ahead", False)


def test_results_that_are_wanted_together_or_few_ahead_are_as_they_should_be(tmp_path):
    assert "pool-ahead" not in names(looks_alike, tmp_path / "run.json")
    assert "pool-ahead" not in names(few_ahead, tmp_path / "other.json")
