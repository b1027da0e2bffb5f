"""functools-cache: a function's cache without a largest size keeps every result."""

from __future__ import annotations

import functools
from typing import ClassVar

import pytest
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
    (found,) = findings_of(fires, tmp_path / "run.json", 96)
    first, second, *_ = found.remedies
    assert found.rule == first.rule == "functools-cache"
    assert found.bytes_per_step == WIDTH * WIDTH * 4
    assert (first.fix, second.fix) == ("bound_cache", "clear_container")
    # an eighth of the entries, of which each has the same bytes
    assert "+    @functools.lru_cache(maxsize=8)" in first.patch
    assert 88 <= found.growth.times < 96
    assert first.saves_bytes == WIDTH * WIDTH * 4  # a step, once the cache is full
    left = first.peak_after - second.peak_after
    saved = second.peak_before - second.peak_after
    assert left == pytest.approx(saved * 8 / found.growth.times, abs=1)


def asked_with_tensors():
    """A tensor is only itself, also where it has the values of another one."""

    @functools.cache
    @torch.no_grad()
    def encoded(ids):
        return torch.zeros(WIDTH, WIDTH) + ids.sum()

    def step(number):
        encoded(torch.tensor([1, 2, 3]))

    return step


def test_a_cache_that_never_has_an_answer_is_to_be_asked_with_values(tmp_path):
    (found,) = findings_of(asked_with_tensors, tmp_path / "run.json", 24)
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("functools-cache", "bound_cache")
    assert "has never had an answer" in first.why
    assert first.code == "@functools.cache"  # and no line of the decorator's within it


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


class Day:
    """One day's table, of which rows are asked for again and again."""

    def __init__(self, rows):
        self.table = torch.zeros(rows, WIDTH)

    @functools.lru_cache(maxsize=4096)  # noqa: B019 - the mistake that is meant
    def row(self, number):
        return self.table[number].clone()


class Asked:
    def __init__(self, days):
        self.days, self.day = days, Day(WIDTH)

    def step(self, number):
        if number % self.days == 0:
            self.day = Day(WIDTH)
        self.day.row(number % WIDTH)


def a_table_for_each_day():
    return Asked(days=3).step


def one_table():
    return Asked(days=1 << 20).step


def test_a_bound_of_results_is_none_of_the_objects_that_keys_keep(tmp_path):
    found = findings_of_fork(a_table_for_each_day, tmp_path / "run.json")[0]
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("functools-cache", "clear_container")
    assert first.code.startswith("@functools.lru_cache(maxsize=4096)")
    assert "keys hold `self`" in first.why


def test_results_of_one_object_fill_the_cache_up_to_its_bound(tmp_path):
    found = findings_of_fork(one_table, tmp_path / "run.json")
    assert not any(one.bytes_per_step for one in found if not one.minor)


def classes_in_a_cache():
    """A cache has a class, and a list of the class' keeps what grows."""

    class Registry:
        shown: ClassVar[list[torch.Tensor]] = []

    @functools.cache
    def of_kind(kind):
        return Registry

    class Job:
        lookup = staticmethod(of_kind)

    of_kind("rows")

    def step(number):
        Job.lookup("rows").shown.append(torch.zeros(WIDTH))

    return step


def test_a_cache_of_classes_is_none_of_what_these_keep(tmp_path):
    (found,) = findings_of(classes_in_a_cache, tmp_path / "run.json")
    assert "functools-cache" not in {remedy.rule for remedy in found.remedies}
    assert found.bytes_per_step == WIDTH * 4
