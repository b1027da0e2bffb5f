"""functools-cache: a function's cache without a largest size keeps every result."""

from __future__ import annotations

import functools

import torch

from tests.rules.recorded import findings_of, findings_of_fork

WIDTH = 64


def fires():
    @functools.cache
    def table(number):
        return torch.zeros(WIDTH, WIDTH) + number

    def step(number):
        table(number)

    return step


def looks_alike():
    """The cache has a largest size, which is reached in the middle of the recording."""

    @functools.lru_cache(maxsize=8)
    def table(number):
        return torch.zeros(WIDTH, WIDTH) + number

    def step(number):
        table(number)

    return step


def test_it_is_to_be_given_a_largest_size(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    first, second, *_ = found.remedies
    assert found.rule == first.rule == "functools-cache"
    assert found.bytes_per_step == WIDTH * WIDTH * 4
    assert (first.fix, second.fix) == ("bound_cache", "clear_container")
    assert "+    @functools.lru_cache(maxsize=128)" in first.patch


class Net(torch.nn.Linear):
    @functools.cache  # noqa: B019 - the mistake that is meant
    def positions(self, length):
        return torch.zeros(1) + length


def of_methods():
    """A model for each step, which the cache's key keeps."""

    def step(number):
        Net(WIDTH, WIDTH, bias=False).positions(3)

    return step


def test_the_cache_of_a_method_keeps_its_objects(tmp_path):
    found = findings_of_fork(of_methods, tmp_path / "run.json")[0]
    first = found.remedies[0]
    assert (found.rule, first.fix, first.patch) == ("functools-cache", "clear_container", "")
    assert found.bytes_per_step >= WIDTH * WIDTH * 4
    assert "keys hold `self`" in first.why
