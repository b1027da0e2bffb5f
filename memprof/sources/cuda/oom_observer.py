"""Being told inside the job that a device ran out of memory, and what it held at that moment.

torch calls an observer on the failing thread, before the exception goes on; where it has none, and
for host memory, the exception itself is read when it leaves the block. Records are the session's.
"""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from memprof.cpython.signal_errors import guarded_errors
from memprof.log import LOG
from memprof.snapshot.reader import traces_from_snapshot
from memprof.sources.cuda import oom_messages
from memprof.sources.cuda.segments import segments_now
from memprof.sources.guarded_access import plain_attributes
from memprof.sources.loop.loop_watch import LoopWatch
from memprof.sources.owners.tensor_owners import Differentiated, owned_tensors, parts
from memprof.sources.stacks import is_own
from memprof.sources.tensor_addresses import PlaceOf, place_of
from memprof.trace import Category, Trace

__all__ = ["REST", "Exhausted", "OomWatch", "from_exception", "ooms_counted"]


Frames: TypeAlias = "tuple[tuple[str, str, int], ...]"
"""Function, file, line; innermost first."""

REST = 10
"""A full record comes again when this many times its duration has passed: job may survive many."""
_MOST_FRAMES = 64
_MOST_STACKS = 200
_MOST_BLOCKS = 200_000
"""Blocks above which a state is too dear to write in the middle of a failure."""
_WORKER = re.compile(r"Caught \w+ in (.+?)\.\n")
"""How torch begins the message of an error that it carries over from a worker or a replica."""
_WORKER_FRAME = re.compile(r'  File "(.+)", line (\d+), in (.+)')


@dataclass(slots=True)
class Exhausted:
    """One failed allocation as the job saw it; ``facts`` go into the finding's details."""

    device: str
    """Empty for the current one, where nothing says which of CUDA's it is."""
    requested: int
    """Bytes; of the segment that torch wanted where only that is known (``facts`` say so); 0 where
    nothing says how many."""
    time_us: int
    frames: Frames
    facts: dict[str, object] = field(default_factory=dict)
    live: dict[Frames, int] = field(default_factory=dict)
    """Live bytes by the stack that allocated them, where torch recorded stacks."""
    trace: Trace | None = None
    """The device's segments and blocks, as a trace without events; None where not read."""
    owned: dict[int, Category] = field(default_factory=dict)
    """What the blocks at these addresses are, as far as modules and optimizers refer to them."""
    brief: bool = False
    """The costly figures were left out: they were taken shortly before."""
    unobserved: bool = False
    """torch's observer is not told of such a failure: a library's, the driver's, a rejection."""


class OomWatch:
    """torch's observer of failed allocations, passed on while somebody watches.

    torch keeps an observer for ever and calls it for every device that it knew then, so there is
    one in the process for each set of devices, and it does nothing while nobody watches.
    """

    def __init__(
        self,
        torch: Any,
        loop_watch: LoopWatch,
        on_exhausted: Callable[[Exhausted], None],
        place: PlaceOf = place_of,
        sees_blocks: Callable[[], bool] = lambda: True,
    ) -> None:
        """``on_exhausted`` is called on the thread whose request failed.

        ``place`` says where a tensor lies, ``sees_blocks`` whether a look at them is short.
        """
        self._place = place
        self._sees_blocks = sees_blocks
        self._torch = torch
        self._loop_watch = loop_watch
        self._on_exhausted = on_exhausted
        self._rested_at_s: dict[int, float] = {}

    def open(self) -> str:
        """Watch from now on; CUDA must be initialised. Why not, where torch cannot; else empty."""
        attach = getattr(self._torch._C, "_cuda_attach_out_of_memory_observer", None)
        if attach is None:
            return "this torch cannot tell when CUDA memory runs out"
        _watching.append(self)
        if id(attach) in _attached:
            return ""
        try:
            attach(_on_observation)
        except RuntimeError as error:  # an allocator that is not torch's own
            return f"torch cannot tell when CUDA memory runs out: {error}".partition("\n")[0]
        _attached[id(attach)] = attach
        return ""

    def close(self) -> None:
        """Watch no more; safe to call twice."""
        if self in _watching:
            _watching.remove(self)

    def observed(self, ordinal: int, segment: int, limit: int, free: int) -> None:
        """torch's figures of one failure; called while the allocator's lock is released."""
        frames = _frames_above(sys._getframe(1))
        facts: dict[str, object] = {"segment_bytes": segment, "device_free": free, "limit": limit}
        what = Exhausted(f"cuda:{ordinal}", segment, time.time_ns() // 1000, frames, facts)
        self._describe(what, ordinal)
        self._on_exhausted(what)

    def describe(self, what: Exhausted) -> None:
        """Put into ``what`` what the device holds, after a failure that torch did not tell of."""
        if not what.device:
            what.device = f"cuda:{int(self._torch.cuda.current_device())}"
        self._describe(what, int(what.device.removeprefix("cuda:")))

    def _describe(self, what: Exhausted, ordinal: int) -> None:
        facts = what.facts
        began_s = time.monotonic()
        what.brief = began_s < self._rested_at_s.get(ordinal, 0.0)
        costly = () if what.brief else (partial(self._blocks, what), partial(self._owners, what))
        for reader in (self._counters, self._autocast, *costly):
            try:
                facts |= reader(ordinal)
            except guarded_errors() as error:  # less is told, the job's error goes on
                facts.setdefault("unread", f"{type(error).__name__}: {error}")
        if not what.brief:
            ended_s = time.monotonic()
            self._rested_at_s[ordinal] = ended_s + REST * (ended_s - began_s)

    def _counters(self, ordinal: int) -> dict[str, object]:
        stats = self._torch.cuda.memory_stats_as_nested_dict(ordinal)
        allocated = stats["allocated_bytes"]["all"]["current"]
        active = stats.get("active_bytes", {}).get("all", {}).get("current", allocated)
        total = self._torch.cuda.get_device_properties(ordinal).total_memory
        return {
            "allocated": allocated,
            "reserved": stats["reserved_bytes"]["all"]["current"],
            "pending": max(active - allocated, 0),
            "device_total": int(total),
            "ooms": ooms_counted(stats),
        }

    def _autocast(self, ordinal: int) -> dict[str, object]:  # noqa: ARG002 - it is the thread's
        """The format that autocast computes in on this thread; empty where it is off."""
        torch = self._torch
        if not hasattr(torch, "get_autocast_dtype"):  # came with 2.4
            return {}
        if not torch.is_autocast_enabled("cuda"):
            return {"autocast": ""}
        return {"autocast": str(torch.get_autocast_dtype("cuda")).removeprefix("torch.")}

    def _blocks(self, what: Exhausted, ordinal: int) -> dict[str, object]:
        """The largest free block; into ``what`` the blocks, and what each known stack holds."""
        if not self._sees_blocks():
            return {"unread": "the program's own memory history is too long to look at the blocks"}
        mine = [s for s in segments_now(self._torch) if s["device"] == ordinal]
        blocks = [block for segment in mine for block in segment["blocks"]]
        free = [b["size"] for b in blocks if b["state"] == "inactive"]
        live: Counter[Frames] = Counter()
        for block in blocks:
            if block["state"] == "active_allocated" and block.get("frames"):
                stack = tuple((f["name"], f["filename"], f["line"]) for f in block["frames"])
                live[stack] += block["size"]
        what.live = dict(live.most_common(_MOST_STACKS))
        if len(blocks) <= _MOST_BLOCKS:
            traces = traces_from_snapshot({"segments": mine})
            what.trace = next((t for t in traces if t.device == what.device), None)
        return {"largest_free": max(free, default=0)}

    def _owners(self, what: Exhausted, ordinal: int) -> dict[str, object]:
        """Bytes of parameters, gradients and optimizer state on the device, also by dtype."""
        owners: dict[int, tuple[Category, str, int]] = {}
        guard = self._loop_watch.guard
        with plain_attributes():
            for owner, tensor in owned_tensors(self._loop_watch, Differentiated(guard)):
                placements = guard.within(self._placements, parts(tensor, guard))
                owners |= {
                    address: (owner.category, dtype, size)
                    for device, address, dtype, size in placements
                    if device == f"cuda:{ordinal}"
                }
        what.owned = {address: category for address, (category, *_) in owners.items()}
        sums: Counter[str] = Counter()
        dtypes: dict[str, Counter[str]] = {}
        for category, dtype, size in owners.values():
            name = category.name.lower().replace("_", " ")
            sums[name] += size
            dtypes.setdefault(name, Counter())[dtype] += size
        if not sums:
            return {}
        return {
            "live_categories": dict(sums),
            "live_dtypes": {n: dict(d) for n, d in dtypes.items()},
        }

    def _placements(self, tensor: Any) -> Iterator[tuple[str, int, str, int]]:
        """Device, address, dtype and bytes of a tensor that has any; it is given none here."""
        device, address = self._place(tensor)
        if address:
            dtype = str(tensor.dtype).removeprefix("torch.")
            yield device, address, dtype, tensor.untyped_storage().nbytes()


_watching: list[OomWatch] = []
_attached: dict[int, Any] = {}
"""The attach functions that were called: torch has no way to take an observer back."""


def ooms_counted(stats: Mapping[str, Any]) -> int:
    """Requests that failed, by torch's counters, and those refused in advance (torch 2.12 on).

    -1 where torch does not count.
    """
    failed: int = stats.get("num_ooms", -1)
    return failed + stats.get("num_oom_rejections", 0) if failed >= 0 else failed


def _on_observation(ordinal: int, segment: int, limit: int, free: int) -> None:
    """What torch calls; an exception here would replace the job's own."""
    for watch in tuple(_watching):
        try:
            watch.observed(ordinal, segment, limit, free)
        except guarded_errors() as error:  # see above
            _say(error)


def _say(error: Exception) -> None:
    """Log it, without its traceback: whoever kept the record would keep the job's tensors."""
    try:
        LOG.debug("a failed allocation was not recorded: %s", f"{type(error).__name__}: {error}")
    except guarded_errors():  # a filter or a handler of the job's own may raise
        pass


def _frames_above(frame: Any) -> Frames:
    frames: list[tuple[str, str, int]] = []
    while frame is not None and len(frames) < _MOST_FRAMES:
        code = frame.f_code
        if not is_own(code.co_filename):
            frames.append((code.co_name, code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return tuple(frames)


def from_exception(error: BaseException | None) -> Exhausted | None:
    """What an out-of-memory error tells of itself; None where it is none.

    All of them are a ``RuntimeError``: ``torch.OutOfMemoryError``, ``torch.AcceleratorError``,
    those of the host's allocator and of libraries.
    """
    text = str(error) if isinstance(error, RuntimeError) else ""
    message = oom_messages.read(text) if text else None
    if error is None or message is None:
        return None
    frames, facts = _frames_of(error), dict[str, object]({"from": "exception"})
    worker = _WORKER.match(text)
    if worker is not None:  # its own traceback comes in the message
        facts["worker"] = worker[1]
        frames = _frames_in(text) + frames
    figures = {
        "device_total": message.total,
        "device_free": message.free if message.total else 0,
        "beside": message.beside,
        "call": message.call,
        "asynchronous": message.asynchronous,
        "rejected": message.rejected,
    }
    facts |= {name: value for name, value in figures.items() if value}
    what = Exhausted(message.device, message.requested, time.time_ns() // 1000, frames, facts)
    what.unobserved = not message.is_torch
    return what


def _frames_in(text: str) -> Frames:
    """The frames of a traceback in words, innermost first."""
    lines = _WORKER_FRAME.findall(text)[-_MOST_FRAMES:]
    return tuple((name, filename, int(line)) for filename, line, name in reversed(lines))


def _frames_of(error: BaseException) -> Frames:
    frames = []
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        frames.append((code.co_name, code.co_filename, traceback.tb_lineno))
        traceback = traceback.tb_next
    return tuple(reversed(frames[-_MOST_FRAMES:]))
