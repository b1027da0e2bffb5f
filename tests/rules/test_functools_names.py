"""functools-cache: decorators that a file has under a name of its own."""

from __future__ import annotations

import functools

import torch

from tests.rules.recorded import findings_of_fork

WIDTH = 64
memoize = functools.lru_cache(maxsize=None)
memoize_few = functools.lru_cache(maxsize=4)


@memoize
def table(number):
    return torch.zeros(WIDTH, WIDTH)


@memoize_few
def small_table(number):
    return torch.zeros(WIDTH, WIDTH)


def fires():
    return lambda number: table(number).sum()


def looks_alike():
    return lambda number: small_table(number).sum()


def test_the_decorator_is_named(tmp_path):
    found, *_ = findings_of_fork(fires, tmp_path / "run.json")
    first = found.remedies[0]
    assert (found.rule, first.fix, first.code) == ("functools-cache", "bound_cache", "@memoize")
    assert found.bytes_per_step == WIDTH * WIDTH * 4


def test_a_bound_is_one_by_any_name(tmp_path):
    found = findings_of_fork(looks_alike, tmp_path / "run.json")
    assert not any(one.bytes_per_step for one in found if not one.minor)
