"""What operators compute of every value of a view that shows memory several times."""

from __future__ import annotations

import pytest
import torch

import memprof
from memprof.loading import load

VALUES, SIZE, HOP = 65_536, 256, 32
WINDOWS = (VALUES - SIZE) // HOP + 1
NBYTES = WINDOWS * SIZE * 4
TIMES = round(NBYTES / (VALUES * 4), 2)


def noted(program, tmp_path):
    """(bytes, count, times) of what was noted, in order, of what `program` makes of a sequence."""
    with memprof.track(tmp_path / "run.json", sources=("cpu",)):
        kept = program(torch.rand(VALUES))
    assert kept is not None
    records = load(tmp_path / "run.json").overlap_copies
    rows = [zip(one.size, one.count, one.times, strict=True) for one in records]
    return [row for columns in rows for row in columns]


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.unfold(0, SIZE, HOP).contiguous(),
        lambda x: x.unfold(0, SIZE, HOP).clone(),
        lambda x: x.unfold(0, SIZE, HOP) + 1,
        lambda x: x.unfold(0, SIZE, HOP).t() * 2,
        lambda x: torch.as_strided(x, (WINDOWS, SIZE), (HOP, 1)).sqrt(),
    ],
)
def test_a_copy_of_all_windows_holds_each_value_so_many_times(program, tmp_path):
    assert noted(program, tmp_path) == [(NBYTES, 1, TIMES)]


def test_what_is_computed_of_a_copy_is_one_as_well(tmp_path):
    def program(x):
        windows = x.unfold(0, SIZE, HOP) - 1
        return windows / 2

    assert noted(program, tmp_path) == [(NBYTES, 1, TIMES), (NBYTES, 1, TIMES)]


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.unfold(0, SIZE, SIZE).clone(),  # side by side
        lambda x: x.unfold(0, SIZE, HOP).mean(1),
        lambda x: x.expand(16, VALUES) + 1,  # the same again, no windows
        lambda x: x.unfold(0, SIZE, HOP),
        lambda x: x.repeat(16),
        lambda x: torch.cat([x] * 16),
    ],
)
def test_other_results_are_not_noted(program, tmp_path):
    assert noted(program, tmp_path) == []
