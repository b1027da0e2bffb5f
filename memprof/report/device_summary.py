"""One device of a run in figures: what it held at the most and in the end, and whose that was."""

from __future__ import annotations

from dataclasses import dataclass

from memprof.oom.failed_allocation import times_out_of_memory
from memprof.report.peak_gaps import PeakGap, peak_gaps
from memprof.report.recorded_steps import recorded_steps
from memprof.run import Run
from memprof.trace import NOT_RECORDED, Phase
from memprof.units import format_bytes
from memprof.views.device_readings import PROCESS, beyond_torch, most, other_processes, series_of
from memprof.views.examination import DeviceExamination, alive_at_peak
from memprof.views.owners import Group, top
from memprof.views.sites import site_name
from memprof.views.steps import allocated_trend
from memprof.views.time_to_full import TimeToFull, times_to_full
from memprof.views.trend import Trend
from memprof.views.window import Window

__all__ = ["DeviceFigures", "PeakMoment", "device_figures"]

_TOP = 6


@dataclass(frozen=True, slots=True)
class PeakMoment:
    """When a device held the most, and who owned it."""

    bytes: int
    event: int
    window: int
    time_us: int
    step: int
    phase: str
    module: str
    site: str
    """The program's line that ran, such as that of ``loss.backward()``."""
    origin_site: str
    """In a backward pass the forward line whose operator it was; empty where not known."""
    categories: tuple[Group, ...]
    modules: tuple[Group, ...]
    sites: tuple[Group, ...]
    inferred: bool
    """Categories and phase were guessed from stacks."""

    @property
    def backward_of(self) -> str:
        """``in the backward pass of train.py:31 in forward``; empty where that is not known."""
        return f"in the backward pass of {self.origin_site}" if self.origin_site else ""


@dataclass(frozen=True, slots=True)
class DeviceFigures:
    """One device in figures; bytes are the allocator's, rounded as it rounds."""

    device: str
    allocated_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    requested_bytes: int
    events: int
    steps: int
    recorded_steps: int
    """Of them, those that a window recorded to their end."""
    ooms: int
    """Failed requests, of traces or as the job told of them, whichever are more."""
    unused_reserved_bytes: int
    """Reserved and not allocated at the moment of most allocated bytes."""
    total_bytes: int
    """Of the device; 0 where not known."""
    outside_torch_bytes: int
    """Most that this process held on the device beyond torch's reserved bytes; -1: not measured."""
    other_processes: dict[str, int]
    """Most that each other process held on the device, by program and PID."""
    growth: Trend | None
    peak: PeakMoment | None
    peak_gaps: tuple[PeakGap, ...] = ()
    """What was not seen, for which the peak may have been higher."""
    time_to_full: TimeToFull | None = None
    """When it is full; None where it does not fill up, or where that is not known."""

    @property
    def peak_is_least(self) -> bool:
        """Whether more than temporaries inside operators was not seen: the peak says little."""
        return not set(self.peak_gaps) <= {PeakGap.OPERATORS}

    @property
    def peak_in_words(self) -> str:
        """``57.7 MiB``, or ``at least 57.7 MiB``."""
        most = format_bytes(self.peak_allocated_bytes)
        return f"at least {most}" if self.peak_is_least else most


def device_figures(device: DeviceExamination, run: Run) -> DeviceFigures:
    """The figures of a device, and its peak; ``failure`` is the last time it ran out of memory."""
    window = device.peak_window
    last = device.windows[-1].trace.end if device.windows else None
    return DeviceFigures(
        device=device.name,
        allocated_bytes=device.allocated,
        reserved_bytes=device.reserved,
        peak_allocated_bytes=device.peak_allocated,
        peak_reserved_bytes=device.peak_reserved,
        requested_bytes=last.requested if last else NOT_RECORDED,
        events=device.device.events,
        steps=int(device.steps.last.max()) + 1 if len(device.steps) else 0,
        recorded_steps=recorded_steps(device.steps)[0],
        ooms=times_out_of_memory(run, device.device),
        unused_reserved_bytes=_unused_reserved(device),
        total_bytes=device.device.info.total_bytes,
        outside_torch_bytes=_outside_torch(device, run),
        other_processes={
            series.name.removeprefix(PROCESS): most(series)
            for series in other_processes(run, device.name)
        },
        growth=allocated_trend(device.steps),
        peak=_peak_moment(window, device.windows.index(window)) if window else None,
        peak_gaps=peak_gaps(device, run),
        time_to_full=next((o for o in times_to_full(run) if o.device == device.name), None),
    )


def _unused_reserved(device: DeviceExamination) -> int:
    window = device.peak_window
    if window is None:
        return 0
    entry = window.line.peak_allocated.event + 1
    return max(int(window.line.reserved[entry] - window.line.allocated[entry]), 0)


def _outside_torch(device: DeviceExamination, run: Run) -> int:
    beyond = most(beyond_torch(run, device.device))
    if beyond >= 0:
        return beyond
    used = most(series_of(run, device.name, "process_used"))  # no step ended: the peaks must do
    return max(used - device.peak_reserved, 0) if used >= 0 else NOT_RECORDED


def _peak_moment(window: Window, number: int) -> PeakMoment:
    line, trace, who = window.line, window.trace, window.owners
    event, alive = line.peak_allocated.event, alive_at_peak(window)
    label = trace.label(int(trace.events.label[event])) if event >= 0 else None
    row = int((line.lives.alloc == event).argmax()) if event >= 0 else -1
    origin = window.origin_of(row) if row >= 0 else None
    phase = label.phase if label else Phase.UNKNOWN
    if phase is Phase.UNKNOWN and row >= 0:
        phase = Phase(int(who.phase.of[row]))
    return PeakMoment(
        bytes=line.peak_allocated.bytes,
        event=event,
        window=number,
        time_us=int(line.time_us[event + 1]),
        step=label.step if label else NOT_RECORDED,
        phase=phase.name.lower(),
        module=label.module if label else "",
        site=who.site.names[int(who.site.of[row])] if row >= 0 else "",
        origin_site=site_name(origin) if origin is not None else "",
        categories=tuple(top(who.category, line.lives.size, alive, 8)),
        modules=tuple(top(who.module, line.lives.size, alive, _TOP)),
        sites=tuple(top(who.line, line.lives.size, alive, _TOP)),
        inferred=who.inferred,
    )
