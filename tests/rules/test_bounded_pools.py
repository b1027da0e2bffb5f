"""pool-ahead: a loop that only begins is a bound; the file has no other pool, whose calls count."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

from tests.rules.recorded import names

BOUND, SIZE = 10, 65_536


def made(number):
    return torch.full((SIZE,), float(number))


def some_ahead():
    """One more is handed in for each that is taken."""
    pool = ThreadPoolExecutor(2)
    waiting = []
    for number in range(BOUND):
        waiting.append(pool.submit(made, number))

    def step(number):
        waiting.append(pool.submit(made, number))
        return waiting.pop(0).result().sum().item()

    return step


def test_a_loop_that_only_begins_is_a_bound(tmp_path):
    assert "pool-ahead" not in names(some_ahead, tmp_path / "run.json")
