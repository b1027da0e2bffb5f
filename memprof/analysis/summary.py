"""The figures of one screen: a verdict, why, what to do next, the peak and who made it.

What is wrong with a run is found elsewhere (`leaks`, `waste`); here it is weighed into one line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from memprof.analysis.examination import (
    DeviceExamination,
    Examination,
    WindowExamination,
    alive_at_peak,
)
from memprof.analysis.failures import Failure, failures, times_out_of_memory
from memprof.analysis.findings import Found, Kind
from memprof.analysis.oom import asked_by, in_a_line
from memprof.analysis.outside import PROCESS, beyond_torch, most, other_processes, series_of
from memprof.analysis.owners import Group, top
from memprof.analysis.sites import short_path
from memprof.analysis.steps import Growth, growth
from memprof.analysis.unseen import is_bare_state, unseen
from memprof.records import Site
from memprof.run import Run
from memprof.trace import NOT_RECORDED, Phase
from memprof.units import format_bytes, format_count

__all__ = [
    "RECORD",
    "DeviceFigures",
    "PeakMoment",
    "Summary",
    "Verdict",
    "summarize",
    "without_remedy",
]

_TOP = 6
_FRAGMENTED = 0.15
"""Share of reserved bytes at its peak that no tensor used, from which it is worth a word."""
_NOTABLE = 256 << 20
_SMALLEST_BLOCK = 512
_CODE = 60
"""Characters of a source line in a sentence."""
_SURE = 0.5
"""Confidence from which waste is the verdict; below it is told among the rest."""
_RISING = 0.9
"""Share of pairs of steps between which bytes rose, from which it is no noise."""
RECORD = (
    "record with `memprof run train.py`, or call torch.cuda.memory._record_memory_history() "
    "before the model is built"
)
"""What to type where a file lacks what was asked for."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer first: a word for machines, a line, the reason and the next thing to do."""

    level: str
    """``no data``, ``ok``, ``leak``, ``waste``, ``fragmentation`` or ``oom``."""
    line: str
    why: str
    next: str


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
    categories: tuple[Group, ...]
    modules: tuple[Group, ...]
    sites: tuple[Group, ...]
    inferred: bool
    """Categories and phase were guessed from stacks."""


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
    growth: Growth | None
    peak: PeakMoment | None


@dataclass(frozen=True, slots=True)
class Summary:
    """What `memprof report` prints and ``--json`` carries."""

    source: str
    verdict: Verdict
    devices: tuple[DeviceFigures, ...]
    unseen: tuple[str, ...]
    ended: str
    """How the program ended, where not as usual: by an exception, or with no end in the file."""
    final_state: bool
    """The file holds what was allocated in the end, and no peak."""
    overhead_us: int
    """-1 where it was not measured."""
    duration_us: int


def summarize(examination: Examination, findings: Sequence[Found] = ()) -> Summary:
    """The summary of a run, given what was found wrong with it, best first."""
    run = examination.run
    failed = _failures(examination)
    devices = tuple(
        _figures(device, run, failed.get(device.name)) for device in examination.devices
    )
    ended = run.footer.ended_us if run.footer else 0
    return Summary(
        source=run.source,
        verdict=_verdict(examination, devices, findings, failed),
        devices=devices,
        unseen=(*unseen(examination), *_told_otherwise(failed)),
        ended=_ended(run),
        final_state=is_bare_state(run),
        overhead_us=run.footer.overhead_us if run.footer else NOT_RECORDED,
        duration_us=max(ended - run.header.created_us, 0) if ended else 0,
    )


def _ended(run: Run) -> str:
    if run.is_snapshot:
        return ""
    if run.footer is None:
        return "killed, or still running: the file has no end"
    return "" if run.footer.status == "ok" else run.footer.status


def _failures(examination: Examination) -> dict[str, Failure]:
    """The last failure of every device that ran out, the latest first; nothing of bare states."""
    run = examination.run
    if not any(times_out_of_memory(run, device) for device in run.devices):
        return {}
    return {failure.device: failure for failure in failures(run, examination)}


def _told_otherwise(failed: Mapping[str, Failure]) -> Iterator[str]:
    for name, failure in failed.items():
        if failure.alike is not None:
            yield f"{name}: when memory ran out {failure.alike.line}"


# -- devices -----------------------------------------------------------------------------------


def _figures(device: DeviceExamination, run: Run, failure: Failure | None) -> DeviceFigures:
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
        ooms=times_out_of_memory(run, device.device),
        unused_reserved_bytes=_unused_reserved(device),
        total_bytes=device.device.info.total_bytes,
        outside_torch_bytes=_outside_torch(device, run),
        other_processes={
            series.name.removeprefix(PROCESS): most(series)
            for series in other_processes(run, device.name)
        },
        growth=growth(device.steps),
        peak=_peak(device.windows, window, failure) if window else None,
    )


def _peak(
    windows: Sequence[WindowExamination], window: WindowExamination, failure: Failure | None
) -> PeakMoment:
    """A failure between windows is told by the recorded step that was like it."""
    number = windows.index(window)
    if failure is None or failure.alike is None or failure.seen is None:
        return _peak_moment(window, number)
    if failure.window != number:
        return _peak_moment(window, number)
    label = failure.label
    return replace(
        _peak_moment(failure.seen, number),
        event=failure.event,
        step=label.step,
        phase=label.phase.name.lower(),
        module=label.module,
        site=asked_by(failure.stack),
        inferred=True,
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


def _peak_moment(window: WindowExamination, number: int) -> PeakMoment:
    line, trace, who = window.line, window.trace, window.owners
    event, alive = line.peak_allocated.event, alive_at_peak(window)
    label = trace.label(int(trace.events.label[event])) if event >= 0 else None
    row = int((line.lives.alloc == event).argmax()) if event >= 0 else -1
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
        categories=tuple(top(who.category, line.lives.size, alive, 8)),
        modules=tuple(top(who.module, line.lives.size, alive, _TOP)),
        sites=tuple(top(who.site, line.lives.size, alive, _TOP)),
        inferred=who.inferred,
    )


# -- the verdict -------------------------------------------------------------------------------


def _verdict(
    examination: Examination,
    devices: Sequence[DeviceFigures],
    findings: Sequence[Found],
    failed: Mapping[str, Failure],
) -> Verdict:
    if failed:
        return _ran_out(examination, next(iter(failed.values())))
    measured = [d for d in devices if d.peak_allocated_bytes or d.peak_reserved_bytes]
    if not measured:
        return _no_data()
    main = max(measured, key=lambda d: d.peak_allocated_bytes)
    if findings and findings[0].kind in (Kind.LEAK, Kind.CYCLE, Kind.HOST_GROWTH, Kind.NON_TORCH):
        return _from_finding("leak", findings[0])
    if findings and findings[0].confidence >= _SURE:
        level = "fragmentation" if findings[0].kind is Kind.FRAGMENTATION else "waste"
        return _from_finding(level, findings[0])
    if is_bare_state(examination.run):
        return _state_alone(examination.run, main)
    return _quiet(examination, main)


def _no_data() -> Verdict:
    return Verdict(
        "no data",
        "no data: nothing was measured",
        "the file holds no allocation, no segment and no counter of any device",
        RECORD,
    )


def _ran_out(examination: Examination, failure: Failure) -> Verdict:
    return Verdict(
        "oom",
        in_a_line(failure),
        _held(failure),
        f"`memprof oom {examination.run.source}` says what would have let it go on",
    )


def _held(failure: Failure) -> str:
    if failure.allocated < 0:
        return "what tensors held then is not in the file"
    held = f"tensors held {format_bytes(failure.allocated)}"
    if failure.unused < 0:
        return held
    return f"{held}, and {format_bytes(failure.unused)} more was reserved but unused"


def _from_finding(level: str, found: Found) -> Verdict:
    remedy = found.remedies[0] if found.remedies else None
    then = f"{remedy.fix}: {remedy.why}" if remedy else without_remedy(found)
    if remedy and remedy.line and (remedy.filename, remedy.line) != _line_of(found.site):
        then += f" ({short_path(remedy.filename)}:{remedy.line})"
    return Verdict(level, found.title, _evidence(found), then)


def without_remedy(found: Found) -> str:
    """What to do about a finding that no rule has a remedy for."""
    if found.kind is Kind.HOST_GROWTH and not found.holders:
        return (
            "look for arrays, texts or lists of numbers that are kept: Python's `tracemalloc` "
            "names the lines that allocate them, where they are Python's or numpy's"
        )
    return "see the finding below"


def _line_of(site: Site) -> tuple[str, int]:
    return site.filename, site.line


def _evidence(found: Found) -> str:
    """Where the bytes are made, how many there are by now, and what else holds them."""
    told = []
    if found.site.filename:
        code = found.site.code.split("  #", maxsplit=1)[0]  # PEP 8 sets comments off by two spaces
        code = code if len(code) <= _CODE else code[: _CODE - 1] + "…"
        made = f": `{code}`" if code else ""
        told.append(f"made at {short_path(found.site.filename)}:{found.site.line}{made}")
    if found.bytes_per_step and found.bytes:
        by = f" after step {found.last_step}" if found.last_step >= 0 else ""
        told.append(f"{format_bytes(found.bytes)} in all{by}")
    if len(found.holders) > 1:
        others = len(found.holders) - 1
        told.append(f"{others} more {'holds' if others == 1 else 'hold'} such tensors")
    return "; ".join(told) or found.title


def _state_alone(run: Run, main: DeviceFigures) -> Verdict:
    """Neither a peak nor growth can be told of what there was in the end."""
    held = f"{format_bytes(main.allocated_bytes)} in tensors on {main.device}"
    if run.is_snapshot:
        why = "the file holds a final state alone, so neither its peak nor growth can be judged"
        return Verdict(
            "ok",
            f"{held} when the snapshot was taken",
            why,
            f"`memprof oom {run.source}` says what filled it; for the peak and what grows {RECORD}",
        )
    return Verdict(
        "ok",
        f"{held}, and nothing allocated while it recorded",
        "no step ended and no tensor was made between the start of the recording and its end",
        "`memprof run train.py` records a program from its first line to its end",
    )


def _quiet(examination: Examination, main: DeviceFigures) -> Verdict:
    peak, source = main.peak, examination.run.source
    owner = peak.categories[0] if peak and peak.categories else None
    line = f"peak {format_bytes(main.peak_allocated_bytes)} on {main.device}"
    if peak and peak.step >= 0:
        line += f", in step {peak.step}"
    if owner and owner.name != "unknown":
        line += f"; {format_bytes(owner.bytes)} of it {owner.name}"
    unused = main.unused_reserved_bytes
    if unused > _NOTABLE and unused > _FRAGMENTED * main.peak_reserved_bytes:
        then = (
            f"{format_bytes(unused)} reserved was unused at the peak: "
            f"`memprof what-if {source} --search` tries other allocator settings"
        )
    else:
        then = f"`memprof what-if {source} --fit` finds the smallest card that it fits on"
    return Verdict("ok", line, _trend(main), then)


def _trend(device: DeviceFigures) -> str:
    trend = device.growth
    if trend is None:
        if not device.steps:
            return "no step marks, so growth from step to step cannot be judged"
        steps = "one step is" if device.steps == 1 else f"{format_count(device.steps)} steps are"
        return f"{steps} too few to judge growth from step to step"
    if trend.bytes_per_step > _SMALLEST_BLOCK and trend.rising > _RISING:
        rate = format_bytes(trend.bytes_per_step)
        return f"allocated bytes rise by {rate} a step, yet no single line keeps growing"
    return f"nothing keeps growing over {format_count(device.steps)} steps"
