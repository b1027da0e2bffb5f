"""A stand-in of the parts of torch that the CUDA source calls, driven by the allocator model.

It has the signatures, the schema and the traps of each torch version, and counts every call. It
says nothing about a GPU: what torch does there is the model's and the stand-in's reading of it.
"""

from __future__ import annotations

import inspect
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np

from memprof.allocator import AllocatorSettings, CachingAllocator, Driver, parse_settings
from memprof.allocator.rounding import SMALL_SIZE
from memprof.allocator.state import Origins, state_of
from memprof.allocator.versions import TieBreak, tie_break_of
from memprof.testing.snapshots import SNAPSHOT_VERSIONS, snapshot
from memprof.trace import Action, Events, Frame, Label, State, Tables, Trace

__all__ = ["StandInOutOfMemoryError", "TorchStandIn"]

_UNBOUNDED = sys.maxsize
_MOST_FRAMES = 64
_RECORD_SINCE = {
    "clear_history": 8,
    "compile_context": 8,
    "global_record_annotations": 8,
    "skip_actions": 11,
    "record_pinned_host_memory": 14,
    "record_cuda": 14,
}
"""The 2.x that brought each argument of ``_record_memory_history`` beyond the first four."""


class StandInOutOfMemoryError(RuntimeError):
    """As ``torch.OutOfMemoryError``, with its message."""


@dataclass(slots=True)
class _Row:
    action: int
    address: int
    size: int
    stream: int
    pool: int
    time_us: int
    stack: int = 0
    label: int = 0
    kept: bool = False
    """Recorded, and not cleared since."""


@dataclass(slots=True)
class _Device:
    """One device's allocator and everything that ever happened on it."""

    model: CachingAllocator
    total: int
    rows: list[_Row] = field(default_factory=list)
    made: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class _Recording:
    context: str | None
    max_entries: int
    skipped: frozenset[str]


class TorchStandIn:
    """As much of the ``torch`` module as the CUDA source uses.

    ::

        torch = TorchStandIn("2.7", capacity=1 << 30)
        address = torch.alloc(4096)
        torch.free(address)
        torch.calls["empty_cache"]      # 0: nobody called it

    Args:
        version: ``"2.4"`` to ``"2.15"``.
        devices: how many the process sees.
        capacity: bytes that this process can have on each.
        outside: bytes of each device that contexts and other processes hold.
        initialized: whether CUDA is; else see `initialize`.
        backend: ``native``, ``cudaMallocAsync`` or ``pluggable``; only the first records.
        settings: in the grammar of ``PYTORCH_CUDA_ALLOC_CONF``.
    """

    def __init__(
        self,
        version: str = "2.13",
        *,
        devices: int = 1,
        capacity: int = 8 << 30,
        outside: int = 512 << 20,
        initialized: bool = True,
        backend: str = "native",
        settings: str = "",
    ) -> None:
        self.__version__ = f"{version}.0"
        self.calls: Counter[str] = Counter()
        self.OutOfMemoryError = StandInOutOfMemoryError
        self._since = SNAPSHOT_VERSIONS.index(version)
        self._version, self._backend = version, backend
        self._initialized = initialized
        self._outside = outside
        parsed = parse_settings(settings) if settings else AllocatorSettings()
        tie = tie_break_of(version) or TieBreak.OLDEST_SEGMENT
        self._settings = {"PYTORCH_CUDA_ALLOC_CONF": settings} if settings else {}
        self._settings |= {"expandable_segments": parsed.expandable_segments}  # type: ignore[dict-item]
        self._devices = [
            _Device(
                CachingAllocator(parsed, tie_break=tie, driver=Driver(capacity)), capacity + outside
            )
            for _ in range(devices)
        ]
        self._recording: _Recording | None = None
        self._tables: dict[str, dict[Any, int]] = {
            "frames": {},
            "stacks": {(): 0},
            "labels": {Label(): 0},
        }
        self._thread = threading.local()
        self._observers: list[Callable[[int, int, int, int], None]] = []
        self._queued: list[Any] = []
        self.cuda = self._cuda()
        self._C = self._private()

    # -- what a program does -------------------------------------------------------------------

    def initialize(self) -> None:
        """CUDA is used for the first time: torch runs what was queued for it."""
        self._initialized = True
        for call, _ in list(self.cuda._queued_calls):
            call()
        self.cuda._queued_calls.clear()

    def alloc(self, size: int, device: int = 0, stream: int = 0) -> int:
        """The address of ``size`` bytes.

        Raises:
            StandInOutOfMemoryError: they do not fit; observers were called before.
        """
        return self._alloc(self._devices[device], size, device, stream)

    def free(self, address: int, device: int = 0, *, complete: bool = True) -> None:
        """The tensor is gone; with ``complete`` False its block waits for another stream."""
        held = self._devices[device]
        block = held.model.live[address]
        where = (block.address, block.requested, block.arena.stream, block.arena.pool)
        stack = self._free_stack(held.rows[block.owner].stack)
        held.model.request_free(address)
        self._write(held, Action.FREE_REQUESTED, *where, stack)
        held.made["freed"] += 1
        if complete:
            self.completed(address, device)

    def completed(self, address: int, device: int = 0) -> None:
        """The other stream is done with a block that was freed."""
        held = self._devices[device]
        block = held.model.live[address]
        where = (block.address, block.requested, block.arena.stream, block.arena.pool)
        self._write(held, Action.FREE_COMPLETED, *where, held.rows[block.owner].stack)
        held.model.complete_free(address)

    def empty_cache(self, device: int = 0) -> None:
        """The program empties its cache; counted apart from calls through `cuda`."""
        held = self._devices[device]
        held.model.empty_cache()
        self._take_log(held)

    @contextmanager
    def backward_thread(self) -> Iterator[None]:
        """What happens inside is as on autograd's threads: no Python frames, no metadata."""
        before = getattr(self._thread, "metadata", "")
        self._thread.bare, self._thread.metadata = True, ""
        try:
            yield
        finally:
            self._thread.bare, self._thread.metadata = False, before

    def trace(self, device: int = 0) -> Trace:
        """Everything that happened on a device, recorded or not."""
        return self._trace(device, range(len(self._devices[device].rows)))

    # -- the allocator -------------------------------------------------------------------------

    def _alloc(self, held: _Device, size: int, device: int, stream: int) -> int:
        stack = self._stack_here()
        block = held.model.malloc(size, stream)
        failed = block is None
        self._take_log(held, stack)
        if failed:
            self._fail(held, device, size)
        assert block is not None
        block.owner = len(held.rows)
        self._write(held, Action.ALLOC, block.address, size, stream, block.arena.pool, stack)
        held.made["allocated"] += 1
        return block.address

    def _fail(self, held: _Device, device: int, size: int) -> None:
        rounded = held.model.rounded(size)
        segment = 20 << 20 if rounded < 10 << 20 else -(-rounded // (2 << 20)) * (2 << 20)
        segment = 2 << 20 if rounded <= SMALL_SIZE else segment
        free = held.model.driver.capacity - held.model.driver.used
        for observer in self._observers:
            observer(device, segment, held.total, free)
        gib = 1 << 30
        raise StandInOutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {size / gib:.2f} GiB. GPU {device} has a total "
            f"capacity of {held.total / gib:.2f} GiB of which {free / gib:.2f} GiB is free."
        )

    def _take_log(self, held: _Device, stack: int = 0) -> None:
        for action, address, size, stream, pool in held.model.log:
            self._write(held, Action(action), address, size, stream, pool, stack)
        held.model.log.clear()

    def _write(
        self,
        held: _Device,
        action: Action,
        address: int,
        size: int,
        stream: int,
        pool: int,
        stack: int,
    ) -> None:
        recording = self._recording
        kept = recording is not None and action.name.lower() not in recording.skipped
        with_stack = recording is not None and recording.context in ("alloc", "all")
        held.rows.append(
            _Row(
                int(action),
                address,
                size,
                stream,
                pool,
                time.time_ns() // 1000,
                stack if with_stack or not kept else 0,
                self._label(),
                kept,
            )
        )

    def _stack_here(self) -> int:
        if self._recording is None or self._recording.context is None:
            return 0
        if getattr(self._thread, "bare", False):
            return 0
        frame: FrameType | None = sys._getframe(1)
        found: list[Frame] = []
        while frame is not None and len(found) < _MOST_FRAMES:
            code = frame.f_code
            if code.co_filename != __file__:
                found.append(Frame(code.co_name, code.co_filename, frame.f_lineno))
            frame = frame.f_back
        return self._row("stacks", tuple(self._row("frames", f) for f in found))

    def _free_stack(self, of_alloc: int) -> int:
        """Entries of a free bear the allocation's stack, with ``context="all"`` their own."""
        is_all = self._recording is not None and self._recording.context == "all"
        return self._stack_here() if is_all else of_alloc

    def _label(self) -> int:
        text = getattr(self._thread, "metadata", "")
        return self._row("labels", Label(annotation=text)) if text else 0

    def _row(self, table: str, key: Any) -> int:
        rows = self._tables[table]
        return rows.setdefault(key, len(rows))

    # -- torch.cuda ----------------------------------------------------------------------------

    def _cuda(self) -> SimpleNamespace:
        cuda = SimpleNamespace(
            is_initialized=lambda: self._initialized,
            device_count=lambda: len(self._devices),
            memory_reserved=lambda i=0: self._devices[i].model.reserved,
            memory_allocated=lambda i=0: self._devices[i].model.allocated,
            get_device_properties=self._properties,
            get_allocator_backend=lambda: self._backend,
            memory_stats_as_nested_dict=self._stats,
            memory_snapshot=self._versioned(self._segments, {"include_traces": 11}),
            memory=SimpleNamespace(
                _record_memory_history=self._versioned(self._record, _RECORD_SINCE),
                _snapshot=self._snapshot,
            ),
            _queued_calls=self._queued,
            _lazy_call=self._lazy_call,
            OutOfMemoryError=StandInOutOfMemoryError,
        )
        for name in ("synchronize", "empty_cache", "reset_peak_memory_stats", "init"):
            setattr(cuda, name, lambda *_, name=name: self.calls.update([name]))
        if self._since >= 6:
            cuda.get_per_process_memory_fraction = lambda _device=0: 1.0
        if self._since >= 10:
            cuda.memory._set_memory_metadata = self._set_metadata
            cuda.memory._get_memory_metadata = lambda: getattr(self._thread, "metadata", "")
        return cuda

    def _private(self) -> SimpleNamespace:
        return SimpleNamespace(
            _cuda_isHistoryEnabled=lambda: self._recording is not None,
            _cuda_attach_out_of_memory_observer=self._attach,
        )

    def _versioned(self, function: Callable[..., Any], since: dict[str, int]) -> Callable[..., Any]:
        """The function without the arguments that this version does not know yet."""
        whole = inspect.signature(function)
        known = [p for p in whole.parameters.values() if since.get(p.name, 0) <= self._since]
        signature = whole.replace(parameters=known)

        def call(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            return function(*bound.args, **bound.kwargs)

        call.__signature__ = signature  # type: ignore[attr-defined]
        return call

    def _lazy_call(self, call: Callable[[], None]) -> None:
        if self._initialized:
            call()
        else:
            self._queued.append((call, []))

    def _properties(self, ordinal: int) -> SimpleNamespace:
        total = self._devices[ordinal].total
        return SimpleNamespace(
            name=f"Stand-in {ordinal}", total_memory=total, uuid=f"stand-in-{ordinal}"
        )

    def _stats(self, ordinal: int = 0) -> dict[str, Any]:
        self.calls["memory_stats"] += 1
        held, model = self._devices[ordinal], self._devices[ordinal].model
        requested = sum(b.requested for b in model.live.values())
        allocated = {"current": model.allocated, "peak": model.peak_allocated}
        reserved = {"current": model.reserved, "peak": model.peak_reserved}
        return {
            "allocated_bytes": {"all": allocated},
            "reserved_bytes": {"all": reserved},
            "active_bytes": {"all": {"current": model.allocated + model.pending}},
            "requested_bytes": {"all": {"current": requested}},
            "allocation": {
                "all": {"allocated": held.made["allocated"], "freed": held.made["freed"]}
            },
            "num_alloc_retries": model.retries,
            "num_ooms": model.ooms,
        }

    def _attach(self, observer: Callable[[int, int, int, int], None]) -> None:
        self.calls["attach_oom_observer"] += 1
        self._only_native("attachOutOfMemoryObserver")
        self._observers.append(observer)

    def _set_metadata(self, text: str) -> None:
        self._thread.metadata = text

    # -- the recorder --------------------------------------------------------------------------

    def _record(  # noqa: PLR0917 - torch's own order
        self,
        enabled: str | None = "all",
        context: str | None = "all",
        stacks: str = "all",  # noqa: ARG002 - C++ frames are not modelled
        max_entries: int = _UNBOUNDED,
        device: Any = None,  # noqa: ARG002 - accepted and ignored, as torch does
        clear_history: bool = False,
        compile_context: bool = False,  # noqa: ARG002
        global_record_annotations: bool = False,  # noqa: ARG002
        skip_actions: list[str] | None = None,
        record_pinned_host_memory: bool = False,  # noqa: ARG002
        record_cuda: bool = True,
    ) -> None:
        self.calls["record_memory_history"] += 1
        self._only_native("recordHistory")
        if enabled is None or clear_history:
            for held in self._devices:
                for row in held.rows:
                    row.kept = False
        if enabled is None or not record_cuda:
            self._recording = None
            return
        entries = 1 if enabled == "state" else max_entries
        self._recording = _Recording(context, entries, frozenset(skip_actions or ()))

    def _snapshot(self, device: Any = None) -> dict[str, Any]:  # noqa: ARG002 - torch ignores it
        self.calls["snapshot"] += 1
        self._only_native("snapshot")
        traces = [self._trace(i, self._visible(i)) for i in range(len(self._devices))]
        return snapshot(*traces, torch=self._version)

    def _segments(self, mempool_id: Any = None, include_traces: bool = True) -> list[Any]:  # noqa: ARG002
        self.calls["memory_snapshot"] += 1
        self._only_native("snapshot")
        traces = [self._trace(i, range(0)) for i in range(len(self._devices))]
        found: list[Any] = snapshot(*traces, torch=self._version)["segments"]
        return found

    def _only_native(self, what: str) -> None:
        if self._backend != "native":
            raise RuntimeError(f"{self._backend} does not yet support {what}.")

    def _visible(self, ordinal: int) -> list[int]:
        """Rows in the ring: the newest of those that were recorded since it was cleared."""
        kept = [i for i, row in enumerate(self._devices[ordinal].rows) if row.kept]
        limit = self._recording.max_entries if self._recording is not None else _UNBOUNDED
        return kept[-limit:]

    def _trace(self, ordinal: int, rows: Any) -> Trace:
        held = self._devices[ordinal]
        names = ("action", "address", "size", "stream", "pool", "time_us", "stack", "label")
        columns = {n: [getattr(row, n) for row in held.rows] for n in names}
        whole: Events = Events.build(len(held.rows), **columns)
        end: State = state_of(held.model, Origins(whole))
        return Trace(
            device=f"cuda:{ordinal}",
            events=whole.take(np.asarray(list(rows), dtype=np.int64)),
            tables=Tables(**{name: tuple(table) for name, table in self._tables.items()}),
            end=end,
            settings=dict(self._settings),
            torch_version=self.__version__,
        )
