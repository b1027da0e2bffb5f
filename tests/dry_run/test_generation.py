"""Text generation ends at its limit of length where the device cannot say that it is done."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from memprof.dry_run.generation import GenerationLimit


class Tokens:
    """As long as was generated."""

    def __init__(self, length: int) -> None:
        self.shape = (4, length)


class MaxLengthCriteria:
    """As in `transformers`: its answer would be a tensor on the device, which reads as zeros."""

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length

    def __call__(self, input_ids: Tokens, scores: object) -> bool:
        assert input_ids is not None
        return False


class GenerationMixin:
    """The loop of `transformers`, as far as it matters."""

    def _has_unfinished_sequences(self, this_peer_finished: bool, synced: bool) -> bool:
        return not this_peer_finished and not synced

    def generate(self, criterion: MaxLengthCriteria, prompt: int, most: int) -> int:
        length, finished = prompt, False
        while self._has_unfinished_sequences(finished, False) and length < most:
            length += 1
            finished = criterion(Tokens(length), None)
        return length


@pytest.fixture
def transformers(monkeypatch):
    """Modules by the names of the library's own."""
    for name in ("transformers", "transformers.generation"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    criteria = ModuleType("transformers.generation.stopping_criteria")
    criteria.MaxLengthCriteria = MaxLengthCriteria
    loop = ModuleType("transformers.generation.utils")
    loop.GenerationMixin = GenerationMixin
    monkeypatch.setitem(sys.modules, criteria.__name__, criteria)
    monkeypatch.setitem(sys.modules, loop.__name__, loop)


@pytest.fixture
def limit():
    limit = GenerationLimit()
    yield limit
    limit.close()


def test_without_it_generation_goes_on(transformers):
    assert GenerationMixin().generate(MaxLengthCriteria(20), 16, most=1000) == 1000


def test_generation_ends_at_its_limit_each_time(transformers, limit):
    limit.open()
    model = GenerationMixin()
    assert model.generate(MaxLengthCriteria(20), 16, most=1000) == 20
    assert model.generate(MaxLengthCriteria(30), 16, most=1000) == 30


def test_it_is_taken_back(transformers, limit):
    call, loop = MaxLengthCriteria.__call__, GenerationMixin._has_unfinished_sequences
    limit.open()
    assert MaxLengthCriteria.__call__ is not call
    limit.close()
    assert MaxLengthCriteria.__call__ is call
    assert GenerationMixin._has_unfinished_sequences is loop


def test_a_library_of_another_form_is_left_alone(transformers, limit):
    sys.modules["transformers.generation.utils"].GenerationMixin = object
    call = MaxLengthCriteria.__call__
    limit.open()
    assert MaxLengthCriteria.__call__ is call
