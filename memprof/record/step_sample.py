"""A few step ends of a run of any length: enough for its trend and its step time, cheap to keep.

What is told of them in the footer is here; rows of all steps are `step_counters`'s.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from memprof.trace import NOT_RECORDED, WARM_UP

__all__ = ["StepSample"]

_MOST = 128
"""Step ends that are kept: their 8,128 pairs are compared in a tenth of a millisecond."""


@dataclass(slots=True)
class StepSample:
    """Every step end, later every 2nd, 4th, 8th …: at regular distances over the whole run."""

    _stride: int = 1
    _count: int = 0
    _steps: list[int] = field(default_factory=list)
    _allocated: list[int] = field(default_factory=list)
    _duration_us: list[float] = field(default_factory=list)

    def add(self, step: int, allocated: int, duration_us: float) -> None:
        """The end of ``step`` with so many bytes; -1 where they are not known."""
        if self._count % self._stride == 0:
            self._steps.append(step)
            self._allocated.append(allocated)
            self._duration_us.append(duration_us)
            if len(self._steps) >= _MOST:
                self._halve()
        self._count += 1

    @property
    def steps(self) -> tuple[int, ...]:
        """The numbers of the steps whose ends are kept."""
        return tuple(self._steps)

    def _halve(self) -> None:
        del self._steps[1::2], self._allocated[1::2], self._duration_us[1::2]
        self._stride *= 2

    @property
    def step_us(self) -> int:
        """The median duration of a step; `NOT_RECORDED` without one."""
        return round(float(np.median(self._duration_us))) if self._duration_us else NOT_RECORDED

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
