"""Allocations that failed: what was asked, and what the device held at that moment.

They are read from ``oom`` events of traces, from findings that the job wrote when it happened, and
from bare final states. Why it happened and what would have helped are judged next door.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from memprof.allocator import segment_map
from memprof.allocator.rounding import SMALL_SIZE
from memprof.oom.job_record import (
    Neighbour,
    first_known,
    fraction_of,
    integer,
    live_categories,
    live_stacks,
    neighbours,
)
from memprof.records import Finding
from memprof.run import DeviceRun, ReadingSeries, Run
from memprof.trace import (
    EMPTY,
    NOT_RECORDED,
    Action,
    BlockState,
    Frame,
    Label,
    SegmentKind,
    State,
    Trace,
)
from memprof.views.examination import Examination
from memprof.views.owners import owners
from memprof.views.steps import is_lone_request, ooms, step_of_event
from memprof.views.timeline import timeline
from memprof.views.window import Window

__all__ = ["NO_STACKS", "Failure", "Neighbour", "failures", "times_out_of_memory"]

_Look: TypeAlias = "Callable[[int], Window]"

NO_STACKS = "memory ran out between two windows, where no stacks are recorded: raise `budget`"
"""What is said of a failure between windows where its lines would stand."""
_SAME_MOMENT_US = 5_000_000
"""A finding is written this soon after its event; a snapshot of a large job takes seconds."""


@dataclass(frozen=True, slots=True, eq=False)
class Failure:
    """One request that could not be served; bytes, `NOT_RECORDED` where not known."""

    device: str
    recorded: str
    """``event``: in a trace; ``finding``: by the job alone; ``state``: only what was held."""
    times: int = 1
    """How often the device ran out in the whole recording; this is the last time."""
    number: int = NOT_RECORDED
    """Of the window that it is in, among those of the device."""
    event: int = NOT_RECORDED
    time_us: int = NOT_RECORDED
    requested: int = NOT_RECORDED
    """Rounded as the allocator rounds where an event tells it."""
    stack: tuple[Frame, ...] = ()
    label: Label = field(default_factory=Label)
    allocated: int = NOT_RECORDED
    reserved: int = NOT_RECORDED
    pending: int = NOT_RECORDED
    """Freed, but waiting for another stream."""
    largest_free: int = NOT_RECORDED
    """Unused and in one piece, of the request's own stream and pool where those are known."""
    apart: int = NOT_RECORDED
    """Unused, but in segments of other streams or pools, which the request could not have."""
    free: int = NOT_RECORDED
    """Of the device, as the driver said."""
    total: int = NOT_RECORDED
    process_used: int = NOT_RECORDED
    fraction: float = 1.0
    neighbours: tuple[Neighbour, ...] = ()
    elsewhere: tuple[tuple[str, int], ...] = ()
    """The run's other devices, and what torch had reserved on each, as near then as is known."""
    details: Mapping[str, Any] | None = None
    """What the job's own finding says beyond this, such as live bytes by owner."""
    window: Window | None = None
    """The trace that it is in, with exact sizes."""
    between_windows: bool = False
    """No stacks were recorded there: of what was held the blocks are known, and no lines."""
    live_categories: Mapping[str, int] = field(default_factory=dict)
    """Bytes by category, as the job saw them; for failures without a trace, as the next."""
    beside: str = ""
    """Who could not allocate, where it was not torch's allocator: ``cuBLAS``."""
    call: str = ""
    """The function that failed then: ``cublasCreate(handle)``; empty where it is not known."""
    asynchronous: bool = False
    """Something before may have caused it: the line that raised the error only reports it."""
    rejected: bool = False
    """torch refused the request in advance, because of the share that it may have."""
    live_stacks: tuple[tuple[tuple[Frame, ...], int], ...] = ()
    """What each stack held, as the job saw it; for failures without a trace."""

    @property
    def unused(self) -> int:
        """Bytes that torch held and no tensor used."""
        if min(self.reserved, self.allocated) < 0:
            return NOT_RECORDED
        return max(self.reserved - self.allocated - max(self.pending, 0), 0)

    @property
    def limit(self) -> int:
        """The most that torch could have held then: what it did, and what was free beside it."""
        if min(self.reserved, self.free) < 0:
            return NOT_RECORDED
        most = self.reserved + self.free
        return min(most, self.allowed) if self.allowed >= 0 else most

    @property
    def attainable(self) -> int:
        """Bytes of the device that torch could still have taken; 0 where that is not known."""
        return max(self.limit - self.reserved, 0) if self.limit >= 0 else max(self.free, 0)

    @property
    def allowed(self) -> int:
        """The most that the program itself lets torch hold; `NOT_RECORDED` where it set none."""
        if self.fraction < 1 and self.total > 0:
            return int(self.fraction * self.total)
        return NOT_RECORDED

    @property
    def outside(self) -> int:
        """Bytes of the device that neither torch held nor were free: contexts, other processes."""
        if min(self.total, self.reserved, self.free) < 0:
            return NOT_RECORDED
        return max(self.total - self.reserved - self.free, 0)

    @property
    def others(self) -> int:
        """Bytes of other processes, where the driver told this process's own."""
        if self.outside < 0:
            return NOT_RECORDED
        in_processes = sum(n.bytes for n in self.neighbours if n.bytes > 0)
        if self.process_used >= 0:
            return max(self.total - self.free - self.process_used, 0)
        return in_processes or NOT_RECORDED


def failures(run: Run, examination: Examination | None = None) -> tuple[Failure, ...]:
    """The last failed allocation of every device that had one, the latest first.

    Where a file holds nothing but final states, each of them; its caller must not call that an OOM.
    ``examination`` is that of the run, if it is there already; it saves the work and no more.
    """
    devices = examination.devices if examination is not None else ()
    window_of = {device.name: device.exact_window for device in devices}
    looks = [(device, window_of.get(device.device) or _look(device)) for device in run.devices]
    result = [f for device, look in looks if (f := _of_device(run, device, look)) is not None]
    if not result and not any(device.events > _bare(device) for device in run.devices):
        result = [f for device in run.devices if (f := _of_state(device)) is not None]
    result = [replace(f, elsewhere=_elsewhere(run, f)) for f in result]
    return tuple(sorted(result, key=lambda f: -f.time_us))


def _elsewhere(run: Run, failure: Failure) -> tuple[tuple[str, int], ...]:
    kind = failure.device.partition(":")[0]
    beside = [d for d in run.devices if d.device != failure.device and d.device.startswith(kind)]
    sizes = [(device.device, _reserved(device, failure.time_us)) for device in beside]
    return tuple((name, size) for name, size in sizes if size > 0)


def _reserved(device: DeviceRun, at_us: int) -> int:
    """At the last step's end before a moment; without steps, when recording ended."""
    steps = device.steps
    rows = np.flatnonzero((steps.reserved >= 0) & (steps.end_us <= at_us))
    if len(rows):
        return int(steps.reserved[rows[-1]])
    last = device.windows[-1] if device.windows else None
    return last.end.reserved if last is not None and last.end is not None else 0


def _bare(device: DeviceRun) -> int:
    """Events that say nothing of allocations: the marks of snapshots."""
    silent = (int(Action.SNAPSHOT), int(Action.OTHER))
    return sum(int(np.isin(t.events.action, silent).sum()) for t in device.windows)


def times_out_of_memory(run: Run, device: DeviceRun) -> int:
    """How often a request to the device failed: as its traces or the job itself tell, the more."""
    from_findings = sum(max(finding.count, 1) for finding in _findings(run, device))
    return max(sum(len(ooms(trace)) for trace in device.windows), from_findings)


def _findings(run: Run, device: DeviceRun) -> list[Finding]:
    return [f for f in run.findings if f.finding == "oom" and f.device == device.device]


def _of_device(run: Run, device: DeviceRun, look: _Look) -> Failure | None:
    findings = _findings(run, device)
    marks = list(_marks(device))
    if not marks and not findings:
        return None
    last = marks[-1] if marks else None
    finding = max(findings, key=lambda f: f.time_us, default=None)
    times = times_out_of_memory(run, device)
    if last is None or (finding is not None and _is_later(finding, device.windows[last[0]], last)):
        assert finding is not None  # one of the two there is
        return _of_finding(run, device, look, finding, times)
    failure = _of_event(run, device, look, *last, times)
    return _join(failure, finding) if finding is not None else failure


def _marks(device: DeviceRun) -> Iterator[tuple[int, int]]:
    for window, trace in enumerate(device.windows):
        for event in ooms(trace).tolist():
            yield window, event


def _is_later(finding: Finding, trace: Trace, mark: tuple[int, int]) -> bool:
    at_us = int(trace.events.time_us[mark[1]])
    of_another = finding.details.get("beside") or finding.details.get("rejected")
    return finding.time_us > at_us + (0 if of_another else _SAME_MOMENT_US)


def _look(device: DeviceRun) -> _Look:
    """Examines one window of a device that was not examined as a whole."""
    return lambda number: Window.of(device.windows[number], number)


def _of_event(
    run: Run, device: DeviceRun, look: _Look, number: int, event: int, times: int
) -> Failure:
    window = look(number)
    trace, line = window.trace, window.line
    events, state = trace.events, _state_at(window, event)
    largest, apart = _free_for(state, trace, event)
    at_us = int(events.time_us[event])
    label = trace.label(int(events.label[event]))
    steps = step_of_event(trace)
    if label.step < 0 <= int(steps[event]):
        label = Label(int(steps[event]), label.phase, label.module, label.annotation)
    return Failure(
        device=device.device,
        recorded="event",
        times=times,
        number=number,
        event=event,
        time_us=at_us,
        requested=int(events.size[event]),
        stack=trace.stack(int(events.stack[event])),
        label=label,
        allocated=int(line.allocated[event]),
        reserved=int(line.reserved[event]),
        pending=_bytes(state, BlockState.ACTIVE_PENDING_FREE),
        largest_free=largest,
        apart=apart,
        free=int(events.address[event]),
        total=device.info.total_bytes or NOT_RECORDED,
        process_used=_reading(run, device.device, "process_used", at_us),
        fraction=device.info.memory_fraction,
        window=window,
        between_windows=_is_moment(trace),
    )


def _state_at(window: Window, event: int) -> State:
    """Segments and blocks when a request failed, from the replay of the window if it kept them."""
    failed = window.replay.failed if window.replay is not None else None
    if failed is not None and failed.event == event:
        return failed.before
    return segment_map(window.trace, event)


def _is_moment(trace: Trace) -> bool:
    """A failure between windows: nothing but the failed request, and blocks without stacks."""
    state = trace.end if trace.start is None else trace.start
    if state is None or not is_lone_request(trace):
        return False
    return bool(((state.blocks.stack == EMPTY) & (state.blocks.state != BlockState.INACTIVE)).any())


def _bytes(state: State, block_state: BlockState) -> int:
    return int(state.blocks.size[state.blocks.state == block_state].sum())


def _largest_free(state: State) -> int:
    free = state.blocks.size[state.blocks.state == BlockState.INACTIVE]
    return int(free.max(initial=0))


def _free_for(state: State, trace: Trace, event: int) -> tuple[int, int]:
    """The largest free block that a request could have had, and the bytes of all others.

    A block serves requests of its segment's stream, pool and size class alone; a pool that the
    recorder did not tell may be any.
    """
    blocks, segments, events = state.blocks, state.segments, trace.events
    rows = np.flatnonzero((blocks.state == BlockState.INACTIVE) & (blocks.segment >= 0))
    segment, pool = blocks.segment[rows], int(events.pool[event])
    kind = SegmentKind.SMALL if events.size[event] <= SMALL_SIZE else SegmentKind.LARGE
    own = (segments.stream[segment] == events.stream[event]) & np.isin(
        segments.kind[segment], (kind, SegmentKind.UNKNOWN)
    )
    if pool >= 0:
        own &= segments.pool[segment] == pool
    size = blocks.size[rows]
    return int(size[own].max(initial=0)), int(size[~own].sum())


def _reading(run: Run, device: str, name: str, at_us: int) -> int:
    for series in run.readings:
        if series.device == device and series.name == name:
            return _last_before(series, at_us)
    return NOT_RECORDED


def _last_before(series: ReadingSeries, at_us: int) -> int:
    recorded_values = series.values[(series.time_us <= at_us) & ~np.isnan(series.values)]
    return int(recorded_values[-1]) if len(recorded_values) else NOT_RECORDED


def _of_finding(
    run: Run,
    device: DeviceRun,
    look: _Look,
    finding: Finding,
    times: int,
) -> Failure:
    tables = next((trace.tables for d in run.devices for trace in d.windows), None)
    label = tables.labels[finding.label] if tables is not None else Label()
    if label.step < 0 <= finding.step:
        label = Label(finding.step, label.phase, label.module, label.annotation)
    facts = finding.details
    total = first_known(integer(facts, "device_total"), device.info.total_bytes)
    number, event, window = _window_then(device, look, finding)
    traced_bytes = int(window.line.allocated[event + 1]) if window is not None else NOT_RECORDED
    return Failure(
        device=device.device,
        recorded="finding",
        times=times,
        number=number,
        event=event,
        window=window,
        time_us=finding.time_us,
        requested=finding.bytes or NOT_RECORDED,
        stack=tables.stack(finding.stack) if tables is not None and finding.stack != EMPTY else (),
        label=label,
        allocated=first_known(integer(facts, "allocated"), traced_bytes),
        reserved=integer(facts, "reserved"),
        pending=integer(facts, "pending"),
        largest_free=integer(facts, "largest_free"),
        free=_free_then(run, device.device, finding),
        total=total,
        beside=str(facts.get("beside") or ""),
        call=str(facts.get("call") or ""),
        asynchronous=facts.get("asynchronous") is True,
        rejected=facts.get("rejected") is True,
        process_used=first_known(
            integer(facts, "process_used"),
            _reading(run, device.device, "process_used", finding.time_us),
        ),
        fraction=fraction_of(facts, total, device.info.memory_fraction),
        neighbours=neighbours(facts),
        details=facts,
        live_categories=live_categories(facts),
        live_stacks=live_stacks(tables, facts),
    )


def _free_then(run: Run, device: str, finding: Finding) -> int:
    """What the device had free, as torch was told, or as the driver said at the last look."""
    details_free = integer(finding.details, "device_free")
    return details_free if details_free >= 0 else _reading(run, device, "free", finding.time_us)


def _window_then(
    device: DeviceRun, look: _Look, finding: Finding
) -> tuple[int, int, Window | None]:
    """The window that was open then, and its last event before; without one, -1 and None."""
    number = integer(finding.details, "window")
    if not 0 <= number < len(device.windows):
        return NOT_RECORDED, NOT_RECORDED, None
    window = look(number)
    times_us = window.trace.events.time_us
    return number, int(np.searchsorted(times_us, finding.time_us, side="right")) - 1, window


def _join(failure: Failure, finding: Finding) -> Failure:
    """The event's figures, with what only the job could see then; not those of another time."""
    if abs(finding.time_us - failure.time_us) > _SAME_MOMENT_US:
        return failure
    facts = finding.details
    total = first_known(integer(facts, "device_total"), failure.total)
    return replace(
        failure,
        total=total,
        fraction=fraction_of(facts, total, failure.fraction),
        process_used=first_known(integer(facts, "process_used"), failure.process_used),
        neighbours=neighbours(facts),
        details=facts,
    )


def _of_state(device: DeviceRun) -> Failure | None:
    trace = next((t for t in reversed(device.windows) if t.end is not None), None)
    if trace is None or trace.end is None or not len(trace.end.blocks):
        return None
    line = timeline(trace)
    return Failure(
        device=device.device,
        recorded="state",
        times=0,
        number=device.windows.index(trace),
        event=len(trace.events) - 1,
        allocated=trace.end.allocated,
        reserved=trace.end.reserved,
        pending=_bytes(trace.end, BlockState.ACTIVE_PENDING_FREE),
        largest_free=_largest_free(trace.end),
        total=device.info.total_bytes or NOT_RECORDED,
        window=Window(trace, line, owners(trace, line.lives), device.device),
    )
