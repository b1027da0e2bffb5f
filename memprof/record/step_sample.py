"""A few step ends of a run of any length: for its trend, its step time and when memory is full.

What is told of them in the footer is here; rows of all steps are `step_counters`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from memprof.trace import NOT_RECORDED, WARM_UP

if TYPE_CHECKING:
    from memprof.views.time_to_full import StepLevels

__all__ = ["StepSample"]

_MOST = 128
"""Step ends that are kept: their 8,128 pairs are compared in a tenth of a millisecond."""


class StepSample(msgspec.Struct):
    """Every step end, later every 2nd, 4th, 8th …: at regular distances over the whole run."""

    _stride: int = 1
    _count: int = 0
    _steps: list[int] = msgspec.field(default_factory=list)
    _allocated: list[int] = msgspec.field(default_factory=list)
    _duration_us: list[float] = msgspec.field(default_factory=list)
    _peaks: list[int] = msgspec.field(default_factory=list)
    _end_us: list[int] = msgspec.field(default_factory=list)
    _peaks_with_gaps: list[int] = msgspec.field(default_factory=list)
    _peak: int = NOT_RECORDED
    """The highest since the last step end that is kept; likewise the most that was taken."""
    _most: int = NOT_RECORDED

    def add(
        self,
        step: int,
        allocated: int,
        duration_us: float,
        *,
        peak: int = NOT_RECORDED,
        peak_with_gaps: int = NOT_RECORDED,
        end_us: int = 0,
    ) -> None:
        """The end of ``step`` with so many bytes; -1 where they are not known.

        ``peak`` is the most within it, ``peak_with_gaps`` that with the gaps (`most_taken`).
        """
        self._peak = max(self._peak, peak, allocated)
        self._most = max(self._most, peak_with_gaps, self._peak)
        if self._count % self._stride == 0:
            self._steps.append(step)
            self._allocated.append(allocated)
            self._duration_us.append(duration_us)
            self._peaks.append(self._peak)
            self._end_us.append(end_us)
            self._peaks_with_gaps.append(self._most)
            self._peak = self._most = NOT_RECORDED
            if len(self._steps) >= _MOST:
                self._halve()
        self._count += 1

    @property
    def steps(self) -> tuple[int, ...]:
        """The numbers of the steps whose ends are kept."""
        return tuple(self._steps)

    def _halve(self) -> None:
        # A peak of a step that is left out is the next one's: what was highest is never lost.
        for highest in (self._peaks, self._peaks_with_gaps):
            highest[2::2] = map(max, highest[1::2], highest[2::2])
        self._peak, self._most = self._peaks[-1], self._peaks_with_gaps[-1]
        del self._steps[1::2], self._allocated[1::2], self._duration_us[1::2]
        del self._peaks[1::2], self._peaks_with_gaps[1::2], self._end_us[1::2]
        self._stride *= 2

    @property
    def step_us(self) -> int:
        """The median duration of a step; `NOT_RECORDED` without one."""
        return round(float(np.median(self._duration_us))) if self._duration_us else NOT_RECORDED

    def levels(self, *, with_gaps: bool = False) -> StepLevels:
        """The same for `memprof.views.time_to_full`."""
        from memprof.views.time_to_full import StepLevels

        highest = self._peaks_with_gaps if with_gaps else self._peaks
        columns = (self._steps, self._allocated, highest, self._end_us)
        return StepLevels(*(np.array(column, dtype=np.float64) for column in columns))

    def trend(self) -> tuple[float | None, float]:
        """Bytes a step (Theil-Sen, Sen 1968) and the share of pairs that rose, after warm-up.

        None and -1 with fewer than five step ends.
        """
        from memprof.views.trend import trend

        steps, allocated = np.array(self._steps), np.array(self._allocated, dtype=np.float64)
        is_judged = (steps >= WARM_UP) & (allocated >= 0) if len(steps) else np.zeros(0, dtype=bool)
        x, y = steps[is_judged].astype(np.float64), allocated[is_judged]
        growth = trend(x, y)
        return (growth.bytes_per_step, growth.rising) if growth else (None, float(NOT_RECORDED))
