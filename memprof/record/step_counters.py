"""Counters at step ends as rows that stay few: one step a row, later 2, 4, 8 … steps a row.

Minimum, maximum, last and the highest peak survive the merging, and a new highest one is told at
once; when to write is `session`'s.
"""

from __future__ import annotations

from typing import NamedTuple

from memprof.records import StepColumns
from memprof.sources.protocol import Counters
from memprof.trace import NOT_RECORDED

__all__ = ["Span", "StepCounters"]

_LATEST = ("allocated", "reserved", "active", "requested", "inactive_split", "retries", "ooms")
_HIGHEST = ("peak_allocated", "peak_reserved")
HIGHER = 1.01
"""Times the highest peak so far; a peak that creeps ends few rows."""
_NAMES = StepColumns.__struct_fields__


class Span(NamedTuple):
    """Steps ``first`` to ``last``, and when they began and ended."""

    first: int
    last: int
    start_us: int
    end_us: int


class StepCounters:
    """The rows of one device.

    The first ``single`` rows are one step each; after every further ``single / 4`` rows the number
    of steps in a row doubles; a new highest peak ends its row earlier. So a million steps make some
    13,000 rows, and a billion 24,000.
    """

    def __init__(self, single: int) -> None:
        """``single``: how many rows hold one step each."""
        self._remaining = self._single = single
        self._stride = 1
        self._row: dict[str, int] = {}
        self._last_step = NOT_RECORDED
        self._spans_in_row = 0
        self._finished_rows: list[dict[str, int]] = []
        self._highest = dict.fromkeys(_HIGHEST, 0)
        """In finished rows: what is higher ends its row, so that no kill takes it."""

    def __len__(self) -> int:
        """Rows that `columns` would return."""
        return len(self._finished_rows)

    def add(self, steps: Span, counters: Counters, window: int) -> None:
        """One step, or a few short ones; ``window`` recorded them, or `NOT_RECORDED`.

        What a signal interrupts may be begun anew: a step counts once.
        """
        steps = steps._replace(first=max(steps.first, self._last_step + 1))
        if steps.first > steps.last:
            return
        if self._row and self._row["window"] != window:
            self._finish()  # a row is either in one window or in none
        row = _row(steps, counters, window)
        row = _merge(self._row, row) if self._row else row
        self._row, self._last_step = row, steps.last
        self._spans_in_row += 1
        if self._spans_in_row >= self._stride or self._has_risen():
            self._finish()

    def columns(self, *, unfinished: bool = False) -> StepColumns | None:
        """Finished rows until they are dropped, or None; that in progress too if ``unfinished``."""
        if unfinished and self._row:
            self._finish()
        rows = self._finished_rows
        if not rows:
            return None
        return StepColumns(**{name: [row[name] for row in rows] for name in _NAMES})

    def drop(self, count: int) -> None:
        """Forget the first rows: they are written."""
        del self._finished_rows[:count]

    def _has_risen(self) -> bool:
        return any(self._row[name] > HIGHER * most for name, most in self._highest.items())

    def _finish(self) -> None:
        for name, most in self._highest.items():
            self._highest[name] = max(most, self._row[name])
        self._finished_rows += [self._row]  # no call from here on: no signal comes in between
        self._row, self._spans_in_row = {}, 0
        self._remaining -= 1
        if self._remaining <= 0:
            self._stride *= 2
            self._remaining = max(1, self._single // 4)


def _row(steps: Span, counters: Counters, window: int) -> dict[str, int]:
    figures = {name: getattr(counters, name) for name in (*_LATEST, *_HIGHEST)}
    return {
        "first": steps.first,
        "last": steps.last,
        "start_us": steps.start_us,
        "end_us": steps.end_us,
        "allocated_min": counters.allocated,
        "allocated_max": counters.allocated,
        "window": window,
        **figures,
    }


def _merge(row: dict[str, int], new: dict[str, int]) -> dict[str, int]:
    row_of_both = new | {"first": row["first"], "start_us": row["start_us"]}
    for name in (*_HIGHEST, "allocated_max"):
        row_of_both[name] = max(row[name], new[name])
    minima = [r["allocated_min"] for r in (row, new) if r["allocated_min"] != NOT_RECORDED]
    row_of_both["allocated_min"] = min(minima, default=NOT_RECORDED)
    return row_of_both
