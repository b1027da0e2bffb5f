"""The program's steps instead of the recorder's, which had to guess until surer signs came."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from memprof.records import Finding, Footer, GuessedSteps, WindowRecord
from memprof.run import Steps
from memprof.trace import NOT_RECORDED

__all__ = ["Numbering"]

Ints = npt.NDArray[np.int64]

_HIGHEST = ("peak_allocated", "peak_reserved", "allocated_max")


class Numbering:
    """Step numbers of the program for those of the recorder: what was merged shares one."""

    def __init__(self, guesses: Sequence[GuessedSteps]) -> None:
        """``guesses`` in the order in which they were written."""
        merges = sorted((one for one in guesses if one.merged), key=lambda one: one.first)
        self._first: list[int] = []
        self._last: list[int] = []
        self._steps_fewer = [0]
        for one in merges:
            if self._last and one.first <= self._last[-1]:  # of ever surer signs, a step in common
                more = max(0, one.last - self._last[-1])
                self._last[-1] += more
                self._steps_fewer[-1] += more
                continue
            self._first.append(one.first)
            self._last.append(one.last)
            self._steps_fewer.append(self._steps_fewer[-1] + one.last - one.first)
        ends = self._last[-1] if self._last else -1
        last_guess = next((one for one in reversed(guesses) if not one.merged), None)
        self.remaining: GuessedSteps | None = None
        """The steps that stay a guess, in the program's numbers."""
        if last_guess is not None and last_guess.first >= ends:
            self.remaining = msgspec.structs.replace(
                last_guess, first=self.of(last_guess.first), last=self.of(last_guess.last)
            )

    def of(self, step: int) -> int:
        """The program's number of one of the recorder's steps; what is none stays as it is."""
        at = bisect_right(self._first, step) - 1
        if at < 0:
            return step
        inside = min(step, self._last[at]) - self._first[at]
        return step - self._steps_fewer[at] - inside

    def finding(self, finding: Finding) -> Finding:
        """With the program's number of its step."""
        if not self._first:
            return finding
        return msgspec.structs.replace(finding, step=self.of(finding.step))

    def window(self, record: WindowRecord) -> WindowRecord:
        """With the program's numbers of its steps."""
        if not self._first:
            return record
        first, last = self.of(record.first_step), self.of(record.last_step)
        # What ended with a guess ended in the middle of the step that this is a part of.
        at = bisect_left(self._last, record.last_step)
        inside = at < len(self._last) and self._first[at] <= record.last_step < self._last[at]
        return msgspec.structs.replace(
            record, first_step=first, last_step=last, in_step=record.in_step or inside
        )

    def footer(self, footer: Footer | None) -> Footer | None:
        """With the program's numbers of the steps of the peaks."""
        if footer is None or not self._first:
            return footer
        devices = [
            msgspec.structs.replace(one, peak_step=self.of(one.peak_step)) for one in footer.devices
        ]
        return msgspec.structs.replace(footer, devices=devices)

    def steps(self, steps: Steps) -> Steps:
        """Counters at the ends of the program's steps; those within one of them become one row."""
        if not self._first or not len(steps):
            return steps
        first, last = self._numbers(steps.first), self._numbers(steps.last)
        begins = np.ones(len(steps), dtype=bool)
        begins[1:] = first[1:] > np.maximum.accumulate(last)[:-1]
        rows = np.flatnonzero(begins)
        ends = np.append(rows[1:], len(steps)) - 1
        columns = {name: getattr(steps, name)[ends] for name in Steps.names()}
        columns["first"], columns["last"] = first[rows], last[ends]
        columns["start_us"] = steps.start_us[rows]
        for name in _HIGHEST:
            columns[name] = np.maximum.reduceat(getattr(steps, name), rows)
        one_step = columns["first"] == columns["last"]
        for name in ("allocated_min", "allocated_max"):
            columns[name] = np.where(one_step, columns["allocated"], columns[name])
        renumbered: Steps = Steps(**columns)
        return renumbered

    def _numbers(self, steps: Ints) -> Ints:
        has_step = steps != NOT_RECORDED
        numbers = np.array([self.of(step) for step in steps.tolist()], dtype=np.int64)
        return np.where(has_step, numbers, steps)
