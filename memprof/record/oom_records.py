"""Records of failed allocations, on disk before the exception goes on; who sees one is `sources`.

The first is told in full, with the window's events up to it; those that follow soon, briefly.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from memprof.record.recording import Recording
from memprof.records import Finding
from memprof.sources.protocol import Interner
from memprof.trace import NOT_RECORDED, Action, Events, State, Trace
from memprof.units import format_bytes

if TYPE_CHECKING:
    from memprof.sources.cuda.oom_observer import Exhausted

__all__ = ["OomRecords"]

_SMALL, _SMALL_SEGMENT = 1 << 20, 2 << 20
"""Requests up to 1 MiB are served from segments of 2 MiB of their own (``kSmallSize``)."""
_SAME_US = 60_000_000
"""An exception that leaves the block this long after torch told of a failure is that failure's."""


class OomRecords:
    """Turns what the job saw of a failure into a finding and its window's last events."""

    def __init__(
        self,
        recording: Recording,
        interner: Interner,
        write: Callable[[Finding, str], None],
        flush: Callable[[], None],
    ) -> None:
        """``write`` takes a finding and what to log, ``flush`` puts all that waits on disk."""
        self._recording, self._interner = recording, interner
        self._write, self._flush = write, flush
        self.times: Counter[str] = Counter()
        """Failed requests that were recorded, by device."""
        self._ooms: dict[str, int] = {}
        self._last_us = -_SAME_US
        self._rested_at_s: dict[str, float] = {}

    def observed(self, what: Exhausted, step: int, label: int) -> None:
        """A device ran out of memory just now, on this thread."""
        self._last_us = what.time_us
        self.times[what.device] += 1
        recorded_ooms, reported_ooms = self._ooms.get(what.device, 0) + 1, what.facts.get("ooms")
        self._ooms[what.device] = max(
            recorded_ooms, reported_ooms if isinstance(reported_ooms, int) else 0
        )
        began_s = time.monotonic()
        full = began_s >= self._rested_at_s.get(what.device, 0.0) and not what.brief
        window = self._recording.window
        if full and window != NOT_RECORDED:
            self._recording.drain()
        elif full and what.trace is not None:
            window = self._moment(what, what.trace, label)
        self._write(self._finding(what, step, label, window, full=full), _sentence(what))
        self._flush()
        if full:
            from memprof.sources.cuda.oom_observer import REST

            ended_s = time.monotonic()
            self._rested_at_s[what.device] = ended_s + REST * (ended_s - began_s)

    def left_the_block(self, error: BaseException | None, step: int, label: int) -> None:
        """An exception ends the recording; recorded here where no observer told of it."""
        if error is None:
            return
        from memprof.sources.cuda.oom_observer import from_exception

        what = from_exception(error)
        if what is None or not (what.unobserved or what.time_us - self._last_us > _SAME_US):
            return
        if what.device != "cpu":
            self._recording.at_failure(what)
        what.device = what.device or "cuda:0"
        self.observed(what, step, label)

    def add_count(self, device: str, ooms: int, step: int) -> None:
        """torch's count at a step's end: failures that nobody told of get one record together."""
        recorded_ooms = self._ooms.setdefault(device, max(ooms, 0))
        if ooms > recorded_ooms:
            self._ooms[device] = ooms
            self.times[device] += ooms - recorded_ooms
            details: dict[str, object] = {"from": "counter"}
            finding = Finding("oom", device, step, time.time_ns() // 1000, details=details)
            self._write(finding, f"{device} ran out of memory")

    def _moment(self, what: Exhausted, trace_then: Trace, label: int) -> int:
        """Between windows: what the allocator held and the failed request, as a window; its number.

        Nobody tells what a library asked for, so there is no request then.

        Of the request torch tells the size of the segment alone.
        """
        from memprof.sources.cuda.intern_tables import InternedTables

        rows, end = InternedTables(self._interner, trace_then.tables), trace_then.end
        state = rows.state(end if end is not None else State())
        state = self._recording.with_owners(what.device, state)
        known = zip(state.blocks.address.tolist(), state.blocks.category.tolist(), strict=True)
        category = [int(what.owned.get(address, before)) for address, before in known]
        blocks = replace(state.blocks, category=np.array(category, dtype=np.uint8))
        free = what.facts.get("device_free")
        request = (
            Events.build(
                1,
                action=[int(Action.OOM)],
                address=[free if isinstance(free, int) else NOT_RECORDED],
                size=[_SMALL if what.requested == _SMALL_SEGMENT else what.requested],
                time_us=[what.time_us],
                stack=[self._stack(what.frames)],
                label=[label],
            )
            if what.requested > 0
            else Events.build()
        )
        return self._recording.write_moment(what.device, replace(state, blocks=blocks), request)

    def _finding(
        self, what: Exhausted, step: int, label: int, window: int, *, full: bool
    ) -> Finding:
        details: dict[str, Any] = {**what.facts, "window": window}
        if window != self._recording.window:
            details["moment"] = True
        categories, dtypes = details.pop("live_categories", {}), details.pop("live_dtypes", {})
        if full:
            stacks = [[self._stack(frames), size] for frames, size in what.live.items()]
            details["live"] = {"category": categories, "dtype": dtypes, "stacks": stacks}
            details |= _neighbours(what.device)
        return Finding(
            finding="oom",
            device=what.device,
            step=step,
            time_us=what.time_us,
            stack=self._stack(what.frames),
            label=label,
            bytes=what.requested,
            count=1,
            details=details,
        )

    def _stack(self, frames: tuple[tuple[str, str, int], ...]) -> int:
        return self._interner.stack(tuple(self._interner.frame(*frame) for frame in frames))


def _neighbours(device: str) -> dict[str, Any]:
    from memprof.sources.nvml import processes_on

    processes = processes_on(device)
    own = next((p.bytes for p in processes if p.own), None)
    others = [
        {"pid": p.pid, "name": p.name, "bytes": NOT_RECORDED if p.bytes is None else p.bytes}
        for p in processes
        if not p.own
    ]
    return ({"processes": others} if others else {}) | ({"process_used": own} if own else {})


def _sentence(what: Exhausted) -> str:
    free = what.facts.get("device_free")
    room = f", {format_bytes(free)} free" if isinstance(free, int) else ""
    beside = what.facts.get("beside")
    if beside:
        return f"{what.device} ran out of memory: {beside} could not allocate{room}"
    request = f": {format_bytes(what.requested)} asked" if what.requested > 0 else ""
    return f"{what.device} ran out of memory{request}{room}"
