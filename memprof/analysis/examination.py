"""A run with everything derived that reports, findings and pages share, computed once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memprof.allocator import exact_sizes
from memprof.analysis.owners import Owners, owners
from memprof.analysis.steps import device_steps
from memprof.analysis.timeline import Timeline, timeline
from memprof.run import DeviceRun, Run, Steps
from memprof.trace import NOT_RECORDED, Action, Trace

__all__ = [
    "DeviceExamination",
    "Examination",
    "WindowExamination",
    "alive_at_peak",
    "examine",
    "examine_window",
]


@dataclass(frozen=True, slots=True, eq=False)
class WindowExamination:
    """One trace with its timeline and the owners of its lifetimes."""

    trace: Trace
    line: Timeline
    owners: Owners


@dataclass(frozen=True, slots=True, eq=False)
class DeviceExamination:
    """One device: its windows, and its steps with what the traces add to the counters."""

    device: DeviceRun
    windows: tuple[WindowExamination, ...]
    steps: Steps

    @property
    def name(self) -> str:
        """``"cuda:0"`` or ``"cpu"``."""
        return self.device.device

    @property
    def peak_window(self) -> WindowExamination | None:
        """The window with the highest allocated bytes."""
        return max(self.windows, key=lambda w: w.line.peak_allocated.bytes, default=None)

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
        traced = [int(getattr(window.line, name).bytes) for window in self.windows]
        counted = getattr(self.steps, name)
        return max([*traced, int(counted.max()) if len(counted) else 0, 0])

    def _final(self, name: str) -> int:
        last = self.windows[-1] if self.windows else None
        steps = self.device.steps
        if last is not None and not _steps_after(steps, last.trace):
            state = last.trace.end
            return int(getattr(state, name)) if state else int(getattr(last.line, name)[-1])
        counted = getattr(self.steps, name)
        known = counted[counted != NOT_RECORDED]
        return int(known[-1]) if len(known) else 0


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
    return Examination(run, tuple(_examine_device(d, run.is_snapshot) for d in run.devices))


def _examine_device(device: DeviceRun, is_snapshot: bool) -> DeviceExamination:
    windows = [examine_window(trace, exact=not is_snapshot) for trace in device.windows]
    steps = device_steps(device, tuple(window.line for window in windows))
    return DeviceExamination(device, tuple(windows), steps)


def examine_window(recorded: Trace, *, exact: bool = True) -> WindowExamination:
    """One trace with its timeline and owners; ``exact`` with the bytes that each block took."""
    trace = _with_exact_sizes(recorded) if exact else recorded
    line = timeline(trace)
    return WindowExamination(trace, line, owners(trace, line.lives))


def _with_exact_sizes(trace: Trace) -> Trace:
    """With the bytes that each block took, which only a replay knows where no split was made.

    Runs are short of events and their figures must equal torch's own counters to the byte. A plain
    snapshot is counted as its events stand, requests rounded up: it may hold millions of events,
    and it may contradict itself; `memprof replay` is there for the rest.
    """
    if trace.modelled or not np.isin(trace.events.action, (Action.ALLOC, Action.OOM)).any():
        return trace
    return exact_sizes(trace)


def alive_at_peak(window: WindowExamination) -> npt.NDArray[np.bool_]:
    """Mask of the lifetimes that are allocated at the window's peak."""
    return window.line.lives.alive_at(window.line.peak_allocated.event)
