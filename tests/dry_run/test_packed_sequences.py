"""Whether a batch has sequences packed one after another, where the device cannot say."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from memprof.dry_run.packed_sequences import PackedSequences

NAME = "transformers.masking_utils"
MASK = object()


class Positions:
    """As a tensor of positions: ``stride`` is 0 where one row stands for all."""

    def __init__(self, *rows: list[int], is_cuda: bool = True, stride: int = 1) -> None:
        self.rows, self.is_cuda, self._stride = list(rows), is_cuda, stride

    def stride(self, dimension: int) -> int:
        return self._stride * (1 - dimension)

    def __getitem__(self, rows: slice) -> Positions:
        return Positions(*self.rows[rows])

    def tolist(self) -> list[list[int]]:
        assert self._stride, "one row is enough"
        return self.rows


@pytest.fixture
def module(monkeypatch):
    """As in `transformers`: without a kernel that answers, it takes every batch to be packed."""
    module = ModuleType(NAME)
    module.find_packed_sequence_indices = lambda position_ids: MASK
    monkeypatch.setitem(sys.modules, "transformers", ModuleType("transformers"))
    monkeypatch.setitem(sys.modules, NAME, module)
    return module


@pytest.fixture
def wrapped(module):
    wrapped = PackedSequences()
    wrapped.open()
    yield wrapped
    wrapped.close()


@pytest.mark.parametrize(
    ("rows", "mask"),
    [
        ([[0, 0, 0, 0]], None),  # made on the device: nothing is known
        ([[0, 1, 2, 3], [0, 1, 2, 3]], None),
        ([[7]], None),
        ([[0, 1, 2, 3], [0, 1, 0, 1]], MASK),
    ],
)
def test_positions_that_begin_anew_are_packed(module, wrapped, rows, mask):
    assert module.find_packed_sequence_indices(Positions(*rows)) is mask


def test_one_row_that_stands_for_all_is_read_once(module, wrapped):
    rows = Positions([0, 1, 2], [0, 1, 2], stride=0)
    assert module.find_packed_sequence_indices(rows) is None
    rows = Positions([0, 1, 0], [0, 1, 0], stride=0)
    assert module.find_packed_sequence_indices(rows) is MASK


def test_what_lies_on_the_host_is_left_to_the_library(module, wrapped):
    assert module.find_packed_sequence_indices(Positions([0, 0], is_cuda=False)) is MASK


def test_it_is_taken_back(module, wrapped):
    wrapped.close()
    assert module.find_packed_sequence_indices(Positions([0, 0])) is MASK


def test_a_library_without_the_function_is_left_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, NAME, ModuleType(NAME))
    wrapped = PackedSequences()
    wrapped.open()
    assert not hasattr(sys.modules[NAME], "find_packed_sequence_indices")
    wrapped.close()
