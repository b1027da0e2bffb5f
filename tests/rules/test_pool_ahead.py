"""pool-ahead: a pool's results wait to be taken, or the items of its work to be worked on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from multiprocessing.pool import ThreadPool
from threading import Event, Semaphore

import pytest
import torch

from memprof.rules.waste import pool_ahead
from memprof.source_code.program import program_of
from tests.rules.recorded import findings_of, names

ITEMS, SIZE, STEPS = 24, 65_536, 16


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


def submitted_in_loop():
    """The same, in a loop that fills a list."""
    futures = []
    with ThreadPoolExecutor(2) as pool:
        for number in range(ITEMS):
            futures.append(pool.submit(made, number))
        wait(futures)

    def step(number):
        return futures.pop(0).result().sum().item()

    return step


def of_other_pool():
    """A pool of multiprocessing, with threads."""
    pool = ThreadPool(2)
    results = pool.imap(made, range(ITEMS))
    pool.close()
    pool.join()

    def step(number):
        return next(results).sum().item()

    return step


def kept_by_futures():
    """Each result is taken as it is ready, and its future keeps it."""
    net = torch.nn.Linear(8, 8)
    pool = ThreadPoolExecutor(2)
    futures = {pool.submit(made, number): number for number in range(ITEMS)}
    pool.shutdown(wait=True)

    def all_of_them():
        for future in as_completed(futures):
            part = future.result()
            yield net(part[:8]).sum().item()

    results = all_of_them()
    return lambda number: next(results)


def collected():
    """Each result is taken as it is ready, and kept for later."""
    net = torch.nn.Linear(8, 8)
    pool = ThreadPoolExecutor(2)
    futures = {pool.submit(made, number): number for number in range(ITEMS)}
    pool.shutdown(wait=True)
    parts = []

    def all_of_them():
        for future in as_completed(futures):
            part = future.result()
            parts.append(part)
            yield net(part[:8]).sum().item()

    results = all_of_them()
    return lambda number: next(results)


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


def shards():
    for number in range(ITEMS):
        yield made(number)


def summed(shard):
    return shard.sum().item()


def handed_over(items):
    """All work is handed in by the first step; each lets go of an item when it was worked on."""

    def program():
        gate, sums = Semaphore(0), []

        def worked_on(item):
            gate.acquire()
            return summed(item if isinstance(item, torch.Tensor) else made(item))

        pool = ThreadPoolExecutor(max_workers=1)

        def step(number):
            if number == 0:
                sums.append(pool.map(worked_on, items()))
            gate.release()
            next(sums[0])

        return step

    return program


def test_items_that_map_takes_from_a_generator_are_told_at_its_line(tmp_path):
    (found, *_) = findings_of(handed_over(shards), tmp_path / "run.json", ITEMS)
    assert (found.rule, found.minor) == ("pool-ahead", False)
    (remedy,) = found.remedies
    assert (remedy.fix, remedy.code) == (
        "bound_queue",
        "sums.append(pool.map(worked_on, items()))",
    )
    assert "`map` goes through its generator before the first result" in remedy.why
    assert remedy.saves_bytes > 0.6 * found.bytes


def test_numbers_are_handed_over_and_few_tensors_are_there(tmp_path):
    by_number = handed_over(lambda: range(ITEMS))
    found = findings_of(by_number, tmp_path / "run.json", ITEMS)
    assert "pool-ahead" not in [one.rule for one in found]


@pytest.mark.parametrize(("workers", "fewest"), [("4", 8), ("16", 32), ("number", 32), ("", 32)])
def test_there_are_more_items_than_workers(workers, fewest, tmp_path):
    """Each worker has an item, and so many are needed."""
    file = tmp_path / "train.py"
    file.write_text(f"pool = ThreadPoolExecutor({workers})\n")
    assert pool_ahead.fewest_items([program_of(str(file))]) == fewest


def test_results_that_wait_are_told_at_the_line_that_hands_all_in(tmp_path):
    (found, *_) = findings_of(fires, tmp_path / "run.json")
    assert (found.rule, found.minor) == ("pool-ahead", False)
    (remedy,) = found.remedies
    assert remedy.fix == "bound_queue"
    assert remedy.saves_bytes > 0.6 * found.bytes
    assert found.bytes >= 8 * SIZE * 4


@pytest.mark.parametrize("program", [submitted, submitted_in_loop, of_other_pool])
def test_futures_of_a_comprehension_or_a_loop_are_told_as_well(program, tmp_path):
    (found, *_) = findings_of(program, tmp_path / "run.json")
    assert (found.rule, found.minor) == ("pool-ahead", False)
    assert found.bytes >= 8 * SIZE * 4


def test_results_that_their_futures_keep_are_told(tmp_path):
    (found, *_) = findings_of(kept_by_futures, tmp_path / "run.json")
    assert (found.rule, found.minor) == ("pool-ahead", False)
    (remedy,) = found.remedies
    assert found.bytes == ITEMS * SIZE * 4
    assert remedy.saves_bytes == (ITEMS - 4) * SIZE * 4
    assert "let go of each future" in remedy.why


def test_results_that_are_collected_are_left_alone(tmp_path):
    assert "pool-ahead" not in names(collected, tmp_path / "run.json")


def test_results_that_are_wanted_together_or_few_ahead_are_as_they_should_be(tmp_path):
    assert "pool-ahead" not in names(looks_alike, tmp_path / "run.json")
    assert "pool-ahead" not in names(few_ahead, tmp_path / "other.json")


def scored_in_threads():
    """What the threads' models work with is no result that waits, however many tensors it is."""
    layer, asked = torch.randn(64, 64), [Event() for _ in range(ITEMS)]

    def scored(number):
        rows = torch.full((SIZE // 64, 64), float(number))
        hidden = rows @ layer
        scores = hidden @ layer
        asked[number].wait()
        return (rows + scores).sum().item() + hidden[0, 0].item()

    pool = ThreadPoolExecutor(6)
    results = pool.map(scored, range(ITEMS))

    def step(number):
        asked[number].set()
        if number == STEPS - 1:
            for one in asked:
                one.set()
            pool.shutdown()
        return next(results)

    return step


def test_what_threads_work_with_is_no_result(tmp_path):
    assert "pool-ahead" not in names(scored_in_threads, tmp_path / "run.json")
