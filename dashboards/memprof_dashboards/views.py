"""What the figures share of one device: its windows counted out, its axes, its interned stacks."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from memprof.report.recording_gaps import is_bare_state
from memprof.run import DeviceRun, Run, Steps
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.trace import NOT_RECORDED, Frame, Tables, Trace
from memprof.views.examination import DeviceExamination
from memprof.views.owners import OwnerGroupings
from memprof.views.sites import Sites, site_name
from memprof.views.timeline import Timeline
from memprof_dashboards.text import visible

__all__ = ["DeviceView", "StackBook", "StackTable", "WindowView", "device_view", "origin_us"]

Ints = npt.NDArray[np.int64]

_FRAMES = 64
"""Frames of one stack that a page shows, from the innermost."""
_STACKS = 4000
"""Distinct stacks that one page carries; those asked for first are kept."""


class StackTable(msgspec.Struct):
    """The interned stacks of a page; entry 0 of ``stacks`` is the empty one."""

    frames: list[tuple[str, str, int, int]]
    """``[function, file, line, FrameKind]``."""
    stacks: list[list[int]]
    sites: list[str]
    """The site of each stack."""


@dataclass(slots=True)
class StackBook:
    """Stacks of one run, numbered as figures ask for them."""

    tables: Tables
    sites: Sites
    _frames: dict[int, int] = field(default_factory=dict)
    _stacks: dict[int, int] = field(default_factory=lambda: {0: 0})

    def numbers(self, stacks: Ints) -> list[int]:
        """The page's number of each stack; 0 for those beyond what a page carries."""
        distinct, back = np.unique(stacks, return_inverse=True)
        numbers_of = np.array([self._number(int(stack)) for stack in distinct], dtype=np.int64)
        numbers: list[int] = numbers_of[back].tolist()
        return numbers

    def _number(self, stack: int) -> int:
        if stack not in self._stacks:
            if len(self._stacks) >= _STACKS:
                return 0
            self._stacks[stack] = len(self._stacks)
        return self._stacks[stack]

    def table(self) -> StackTable:
        """Everything that was asked for."""
        stacks = [
            [self._frames.setdefault(f, len(self._frames)) for f in self.tables.stacks[s][:_FRAMES]]
            for s in self._stacks
        ]
        frames = [_frame_columns(self.tables.frames[f]) for f in self._frames]
        sites = [
            visible(site_name(self.sites.frames[self.sites.of_stack[s]])) for s in self._stacks
        ]
        return StackTable(frames, stacks, sites)


def _frame_columns(frame: Frame) -> tuple[str, str, int, int]:
    kind = FrameKind(frame_kind(frame.filename))
    return (visible(frame.name), visible(frame.filename), frame.line, int(kind))


@dataclass(frozen=True, slots=True, eq=False)
class WindowView:
    """One window of a device, counted out."""

    trace: Trace
    line: Timeline
    owners: OwnerGroupings
    first_event: int
    """Events of the device before this window."""

    @property
    def clocked(self) -> bool:
        """Its events carry times."""
        return len(self.trace.events) > 0 and int(self.line.time_us[0]) != NOT_RECORDED

    def times(self, entries: Ints, origin: int) -> Ints:
        """Microseconds after ``origin`` at entries of the timeline; never falling."""
        times = self.line.time_us[entries] - origin
        return np.maximum.accumulate(times) if len(times) else times

    def entry_at(self, time_us: int) -> int:
        """The entry of the timeline that stood at a moment."""
        return int(np.searchsorted(self.line.time_us[1:], time_us, side="right"))


@dataclass(frozen=True, slots=True, eq=False)
class DeviceView:
    """One device of a run, ready for figures."""

    run: Run
    device: DeviceRun
    windows: tuple[WindowView, ...]
    steps: Steps
    origin: int
    """The run's first moment, in microseconds since the Unix epoch; 0 where nothing was timed."""
    book: StackBook

    @property
    def moments(self) -> dict[str, tuple[WindowView, int]]:
        """``peak`` and ``end``, each a window and an entry of its timeline.

        The end alone where nothing happened in between, nothing where there is no state.
        """
        if not self.windows:
            return {}
        last = self.windows[-1]
        end = {"end": (last, len(last.line.allocated) - 1)}
        if is_bare_state(self.run) or not any(len(w.trace.events) for w in self.windows):
            return end
        best = max(self.windows, key=lambda w: w.line.peak_allocated.bytes)
        return {"peak": (best, best.line.peak_allocated.event + 1), **end}


def device_view(
    run: Run, examination: DeviceExamination, origin: int, book: StackBook
) -> DeviceView:
    """``examination`` with its windows put behind one another."""
    windows, first = [], 0
    for window in examination.windows:
        windows.append(WindowView(window.trace, window.line, window.owners, first))
        first += len(window.trace.events)
    return DeviceView(run, examination.device, tuple(windows), examination.steps, origin, book)


def origin_us(run: Run) -> int:
    """The earliest moment that anything in ``run`` was recorded at; 0 where nothing was timed."""
    moments = [
        column[column > 0].min()
        for column in (
            *(w.events.time_us[:1] for d in run.devices for w in d.windows),
            *(d.steps.start_us for d in run.devices),
            *(d.steps.end_us for d in run.devices),
            *(series.time_us for series in run.readings),
        )
        if (column > 0).any()
    ]
    return int(min(moments, default=0))
