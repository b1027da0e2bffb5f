"""Memory that something idle keeps at the end: a waiting thread, an old traceback, a log."""

from __future__ import annotations

from collections.abc import Iterator

from memprof.records import Finding, Site
from memprof.reference_chain import LinkKind
from memprof.rules.finding import Evidence, Found, Kind
from memprof.run import DeviceRun, Run
from memprof.units import format_bytes, format_percent
from memprof.views.steps import device_steps
from memprof.views.timeline import timeline

__all__ = ["pinned"]

_IDLE = frozenset(
    {
        LinkKind.THREAD,
        LinkKind.EXCEPTION,
        LinkKind.TRACEBACK,
        LinkKind.LOG_RECORD,
        LinkKind.NOTEBOOK,
    }
)
"""Kinds of holders that keep what nobody means to use again."""
_LEAST_SHARE = 0.04
"""Of the peak, as for other waste."""
_MOST = 3


def pinned(run: Run) -> tuple[Found, ...]:
    """The largest residents of each device that only something idle holds.

    From the search at the end of the recording. The one fact is ``pattern``: ``pinned``.
    """
    return tuple(found for device in run.devices for found in _of_device(run, device))


def _of_device(run: Run, device: DeviceRun) -> Iterator[Found]:
    resting = [
        one
        for one in run.findings
        if one.finding == "holders"
        and one.device == device.device
        and one.details.get("reason") == "resident"
        and one.holders
        and one.holders[0].kind in _IDLE
    ]
    if not resting:
        return
    peak = _peak(device)
    large = [one for one in resting if one.bytes >= _LEAST_SHARE * peak]
    by_line: dict[tuple[str, int], Finding] = {}
    for one in sorted(large, key=lambda one: -one.bytes):
        by_line.setdefault((one.holders[0].filename, one.holders[0].line), one)
    for one in list(by_line.values())[:_MOST]:
        yield _found(one, device, peak)


def _peak(device: DeviceRun) -> int:
    lines = tuple(timeline(trace) for trace in device.windows)
    steps = device_steps(device, lines)
    highest = [line.peak_allocated.bytes for line in lines] + steps.peak_allocated.tolist()
    return max(highest, default=0)


def _found(one: Finding, device: DeviceRun, peak: int) -> Found:
    holder = one.holders[0]
    tables = device.windows[-1].tables if device.windows else None
    return Found(
        kind=Kind.WASTE,
        device=device.device,
        site=Site(holder.filename, holder.line, "", holder.code),
        title=f"{format_bytes(one.bytes)} ({format_percent(one.bytes, peak)} of the peak) "
        f"lie idle: {holder.description}",
        bytes=one.bytes,
        confidence=0.6,
        first_step=one.step,
        last_step=one.step,
        stack=tables.stack(one.stack) if tables is not None else (),
        holders=tuple(one.holders),
        evidence=Evidence(facts={"pattern": "pinned"}),
    )
