"""functools-cache: decorators that a file has under a name of its own."""

from __future__ import annotations

import functools

import pytest
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


def _wrapped(number):
    return torch.zeros(WIDTH, WIDTH)


wrapped = functools.cache(_wrapped)


def by_call():
    return lambda number: wrapped(number).sum()


class Index:
    """Caches a method of its own, for each of its objects apart."""

    def __init__(self):
        self.encode = functools.lru_cache(maxsize=None)(self._encode)

    def _encode(self, number):
        return torch.zeros(WIDTH, WIDTH)


def by_call_with_method():
    index = Index()
    return lambda number: index.encode(number).sum()


class Masks:
    @staticmethod
    @functools.lru_cache(None)
    def mask(length):
        return torch.zeros(WIDTH, WIDTH)


def by_static_method():
    return lambda number: Masks.mask(number).sum()


@pytest.mark.parametrize(
    ("program", "code", "bounded"),
    [
        (
            by_call,
            "wrapped = functools.cache(_wrapped)",
            "wrapped = functools.lru_cache(maxsize=8)(_wrapped)",
        ),
        (
            by_call_with_method,
            "self.encode = functools.lru_cache(maxsize=None)(self._encode)",
            "self.encode = functools.lru_cache(maxsize=8)(self._encode)",
        ),
        (
            by_static_method,
            "@functools.lru_cache(None)",
            "@functools.lru_cache(8)",
        ),
    ],
)
def test_a_function_without_self_is_given_a_largest_size(program, code, bounded, tmp_path):
    found, *_ = findings_of_fork(program, tmp_path / "run.json")
    first = found.remedies[0]
    assert (found.rule, first.fix, first.code) == ("functools-cache", "bound_cache", code)
    assert found.bytes_per_step == WIDTH * WIDTH * 4
    assert f"+{bounded}" in first.patch.replace("+    ", "+").replace("+    ", "+")
    assert not any("`self`" in one.why for one in found.remedies)
