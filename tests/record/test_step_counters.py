"""Rows of counters stay few in a long job, and lose no peak."""

from __future__ import annotations

from itertools import chain

import msgspec

from memprof.record.step_counters import Span, StepCounters
from memprof.records import StepColumns
from memprof.sources.protocol import Counters
from memprof.trace import NOT_RECORDED


def take(rows: StepCounters, *, unfinished: bool = False) -> StepColumns | None:
    """The rows, as one who writes them down takes them."""
    columns = rows.columns(unfinished=unfinished)
    rows.drop(len(columns.first) if columns else 0)
    return columns


def rows_of(steps: int, single: int, peak_at: int = -1) -> list[dict]:
    rows = StepCounters(single)
    taken = []
    for step in range(steps):
        peak = 10**6 if step == peak_at else 100
        figures = Counters("cpu", allocated=step, peak_allocated=peak)
        rows.add(Span(step, step, 10 * step, 10 * step + 9), figures, NOT_RECORDED)
        columns = take(rows)
        taken += [] if columns is None else [msgspec.to_builtins(columns)]
    columns = take(rows, unfinished=True)
    return taken + ([] if columns is None else [msgspec.to_builtins(columns)])


def column(taken: list[dict], name: str) -> list[int]:
    return list(chain.from_iterable(columns[name] for columns in taken))


def test_rows_cover_more_and_more_steps_without_a_gap_or_an_overlap():
    taken = rows_of(steps=1000, single=8)
    first, last = column(taken, "first"), column(taken, "last")
    assert first[:10] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 10]
    assert [b + 1 for b in last[:-1]] == first[1:]
    assert last[-1] == 999
    assert first[8:16:2] == [8, 12, 20, 36]
    assert len(first) == 24


def test_merged_rows_keep_minimum_maximum_last_and_the_peak():
    taken = rows_of(steps=1000, single=8, peak_at=777)
    row = next(i for i, last in enumerate(column(taken, "last")) if last >= 777)
    assert column(taken, "peak_allocated")[row] == 10**6
    assert column(taken, "peak_allocated").count(10**6) == 1
    first, last = column(taken, "first"), column(taken, "last")
    assert column(taken, "allocated_min") == first
    assert column(taken, "allocated_max") == last
    assert column(taken, "allocated") == last
    assert column(taken, "start_us") == [10 * step for step in first]


def test_a_step_with_a_new_highest_peak_ends_its_row_at_once():
    rows = StepCounters(single=4)
    peaks = [100] * 500 + [101, 102, 101, 300, 300] + [302] * 20
    told = []
    for step, peak in enumerate(peaks):
        rows.add(Span(step, step, 0, 1), Counters("cpu", peak_reserved=peak), NOT_RECORDED)
        columns = take(rows)
        told.append(columns is not None and columns.peak_reserved[-1])
    assert told[501] == 102  # 101 creeps
    assert told[503] == 300
    assert not any(told[504:])


def test_a_row_lies_in_one_window_or_in_none():
    rows = StepCounters(single=1)
    for step, window in enumerate([-1, -1, -1, 0, 0, -1, -1]):
        rows.add(Span(step, step, 0, 1), Counters("cpu"), window)
    columns = take(rows, unfinished=True)
    for first, last, window in zip(columns.first, columns.last, columns.window, strict=True):
        assert {[-1, -1, -1, 0, 0, -1, -1][step] for step in range(first, last + 1)} == {window}


def test_a_million_steps_make_few_rows():
    rows = StepCounters(4096)
    figures = Counters("cpu", allocated=1)
    count = 0
    for step in range(1_000_000):
        rows.add(Span(step, step, 0, 1), figures, NOT_RECORDED)
        if len(rows) >= 1000:
            count += len(take(rows).first)
    assert 12_000 < count <= 14_000


def test_a_step_that_is_counted_again_after_an_interruption_counts_once():
    rows = StepCounters(single=8)
    for first, last in [(0, 0), (1, 1), (1, 1), (1, 2), (3, 3)]:
        rows.add(Span(first, last, 0, 1), Counters("cpu"), NOT_RECORDED)
    columns = rows.columns()
    assert (columns.first, columns.last) == ([0, 1, 2, 3], [0, 1, 2, 3])


def test_rows_are_there_until_they_are_written():
    rows = StepCounters(single=8)
    rows.add(Span(0, 0, 0, 1), Counters("cpu"), NOT_RECORDED)
    assert rows.columns() == rows.columns()
    rows.drop(1)
    assert rows.columns() is None
