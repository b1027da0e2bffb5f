"""A run with everything derived that reports, findings and pages share, computed once."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from memprof.run import DeviceRun, Run, Steps
from memprof.trace import NOT_RECORDED, Trace
from memprof.views.steps import device_steps
from memprof.views.window import Window

__all__ = [
    "DeviceExamination",
    "Examination",
    "alive_at_peak",
    "examine",
]

_NEARLY = 0.99
"""Of the highest peak: windows of a job that does the same again and again reach the same."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceExamination:
    """One device: its windows, and its steps with what the traces add to the counters."""

    device: DeviceRun
    windows: tuple[Window, ...]
    steps: Steps
    _exact: dict[int, Window] = field(default_factory=dict)

    def exact_window(self, number: int) -> Window:
        """One of its windows, with the bytes that a replay tells, also of a plain snapshot."""
        if self.windows[number].replay is not None or self.device.windows[number].modelled:
            return self.windows[number]
        if number not in self._exact:
            self._exact[number] = Window.of(self.device.windows[number], number)
        return self._exact[number]

    @property
    def name(self) -> str:
        """``"cuda:0"`` or ``"cpu"``."""
        return self.device.device

    @property
    def peak_window(self) -> Window | None:
        """The window with the highest allocated bytes.

        Of those with nearly as many the one with the most steps, which tells most about them.
        """
        highest = max((w.line.peak_allocated.bytes for w in self.windows), default=0)
        high = [w for w in self.windows if w.line.peak_allocated.bytes >= _NEARLY * highest]
        return max(high, key=lambda w: (len(w.steps), w.line.peak_allocated.bytes), default=None)

    @property
    def peak_allocated(self) -> int:
        """The most bytes in use at once, from traces and counters; 0 where nothing was measured."""
        return self._peak("peak_allocated")

    @property
    def peak_reserved(self) -> int:
        """The most bytes held from the driver at once, from traces and counters."""
        return self._peak("peak_reserved")

    @property
    def allocated(self) -> int:
        """Bytes in use when recording ended."""
        return self._final("allocated")

    @property
    def reserved(self) -> int:
        """Bytes held from the driver when recording ended."""
        return self._final("reserved")

    def _peak(self, name: str) -> int:
        peaks = [int(getattr(window.line, name).bytes) for window in self.windows]
        counts = getattr(self.steps, name)
        return max([*peaks, int(counts.max()) if len(counts) else 0, 0])

    def _final(self, name: str) -> int:
        last = self.windows[-1] if self.windows else None
        steps = self.device.steps
        if last is not None and not _steps_after(steps, last.trace):
            state = last.trace.end
            return int(getattr(state, name)) if state else int(getattr(last.line, name)[-1])
        counts = getattr(self.steps, name)
        recorded_counts = counts[counts != NOT_RECORDED]
        return int(recorded_counts[-1]) if len(recorded_counts) else 0


def _steps_after(steps: Steps, trace: Trace) -> bool:
    """Whether counters went on after the window closed."""
    if not len(steps) or not len(trace.events):
        return bool(len(steps))
    return bool(steps.window[-1] == NOT_RECORDED and steps.end_us[-1] > trace.events.time_us[-1])


@dataclass(frozen=True, slots=True, eq=False)
class Examination:
    """A run and, for every device of it, what was derived."""

    run: Run
    devices: tuple[DeviceExamination, ...]


def examine(run: Run) -> Examination:
    """Timelines, owners and steps of every device and window of ``run``."""
    return Examination(run, tuple(_examine_device(d, run) for d in run.devices))


def _examine_device(device: DeviceRun, run: Run) -> DeviceExamination:
    windows = [
        Window.of(trace, number, exact=not run.is_snapshot, run=run)
        for number, trace in enumerate(device.windows)
    ]
    steps = device_steps(device, tuple(window.line for window in windows))
    return DeviceExamination(device, tuple(windows), steps)


def alive_at_peak(window: Window) -> npt.NDArray[np.bool_]:
    """Mask of the lifetimes that are allocated at the window's peak."""
    return window.line.lives.alive_at(window.line.peak_allocated.event)
