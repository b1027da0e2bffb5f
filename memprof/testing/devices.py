"""Devices of a stand-in of torch: a program's allocations on the model, written down as torch does.

What a program does and what happened live here; torch's own functions over them are `cuda`'s.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import numpy as np

from memprof.allocator import (
    AllocatorSettings,
    CachingAllocator,
    Driver,
    parse_settings,
    tie_break_of,
)
from memprof.allocator.rounding import SMALL_SIZE
from memprof.allocator.state import Origins, state_of
from memprof.allocator.versions import TieBreak
from memprof.trace import Action, Events, Frame, Label, State, Tables, Trace

__all__ = ["Devices", "RecorderSettings", "StandInOutOfMemoryError"]

_MOST_FRAMES = 64
_HERE = (__file__, __file__.replace("devices.py", "cuda.py"))


class StandInOutOfMemoryError(RuntimeError):
    """As ``torch.OutOfMemoryError``, with its message."""


@dataclass(slots=True)
class _HistoryRow:
    action: int
    address: int
    size: int
    stream: int
    pool: int
    time_us: int
    stack: int = 0
    label: int = 0
    has_stack: bool = True
    """Whether the entry bears the stack; with ``context="state"`` only the block does."""


@dataclass(slots=True)
class _Ring:
    """torch's ring of one device: changing its size without clearing leaves it out of order."""

    rows: list[int] = field(default_factory=list)
    next: int = 0

    def add(self, row: int, most: int) -> None:
        if len(self.rows) < most:
            self.rows.append(row)
            return
        self.rows[self.next] = row
        self.next = 0 if self.next + 1 == most else self.next + 1

    def entries(self) -> list[int]:
        return self.rows[self.next :] + self.rows[: self.next]

    def clear(self) -> None:
        self.rows.clear()
        self.next = 0


@dataclass(slots=True)
class _DeviceState:
    """One device's allocator and everything that ever happened on it."""

    model: CachingAllocator
    total: int
    physical: int
    """Bytes that this process could have without a limit of its own."""
    fraction: float = 1.0
    rows: list[_HistoryRow] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    ring: _Ring = field(default_factory=_Ring)

    @property
    def free(self) -> int:
        """Bytes that the driver could still give, to this process or another."""
        return self.physical - self.model.driver.used


@dataclass(frozen=True, slots=True)
class RecorderSettings:
    """What torch's recorder was told."""

    context: str | None
    stacks: str
    max_entries: int
    skipped: frozenset[str]


class Devices:
    """What a program does on the devices of a stand-in, and everything that happened there."""

    def __init__(
        self, version: str, devices: int, capacity: int, outside: int, settings: str
    ) -> None:
        """As `TorchStandIn`."""
        self.__version__ = f"{version}.0"
        self.hidden: set[str] = {*_HERE}
        """Files whose frames are not recorded: what drives the stand-in."""
        parsed = parse_settings(settings) if settings else AllocatorSettings()
        tie = tie_break_of(version) or TieBreak.OLDEST_SEGMENT
        self._settings: dict[str, Any] = {"expandable_segments": parsed.expandable_segments}
        if settings:
            self._settings["PYTORCH_CUDA_ALLOC_CONF"] = settings
        self.devices = [
            _DeviceState(
                CachingAllocator(parsed, tie_break=tie, driver=Driver(capacity)),
                capacity + outside,
                capacity,
            )
            for _ in range(devices)
        ]
        self.recording: RecorderSettings | None = None
        self._tables: dict[str, dict[Any, int]] = {
            "frames": {},
            "stacks": {(): 0},
            "labels": {Label(): 0},
        }
        self._thread = threading.local()
        self.observers: list[Callable[[int, int, int, int], None]] = []

    # -- what a program does -------------------------------------------------------------------

    def alloc(self, size: int, device: int = 0, stream: int = 0) -> int:
        """The address of ``size`` bytes.

        Raises:
            StandInOutOfMemoryError: they do not fit; observers were called before.
        """
        return self._alloc(self.devices[device], size, device, stream)

    def free(self, address: int, device: int = 0, *, complete: bool = True) -> None:
        """The tensor is gone; with ``complete`` False its block waits for another stream."""
        device_state = self.devices[device]
        block = device_state.model.live[address]
        where = (block.address, block.requested, block.arena.stream, block.arena.pool)
        stack = self._free_stack(device_state.rows[block.owner].stack)
        device_state.model.request_free(address)
        self._write(device_state, Action.FREE_REQUESTED, *where, stack)
        device_state.counts["freed"] += 1
        if complete:
            self.completed(address, device)

    def completed(self, address: int, device: int = 0) -> None:
        """The other stream is done with a block that was freed."""
        device_state = self.devices[device]
        block = device_state.model.live[address]
        where = (block.address, block.requested, block.arena.stream, block.arena.pool)
        self._write(
            device_state, Action.FREE_COMPLETED, *where, device_state.rows[block.owner].stack
        )
        device_state.model.complete_free(address)

    def empty_cache(self, device: int = 0) -> None:
        """The program empties its cache; counted apart from calls through `cuda`."""
        device_state = self.devices[device]
        device_state.model.empty_cache()
        self._take_log(device_state)

    def limit(self, fraction: float, device: int = 0) -> None:
        """The process may hold no more than this share of the device's memory."""
        device_state = self.devices[device]
        device_state.fraction = fraction
        device_state.model.driver.capacity = min(
            device_state.physical, int(fraction * device_state.total)
        )

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
        return self._trace(device, range(len(self.devices[device].rows)))

    def write_looks(self) -> None:
        """At the end of a snapshot torch records that there was one; later ones show it."""
        for device_state in self.devices if self.recording is not None else ():
            self._write(device_state, Action.SNAPSHOT, 0, device_state.model.allocated, 0, 0, 0)

    # -- the allocator -------------------------------------------------------------------------

    def _alloc(self, device_state: _DeviceState, size: int, device: int, stream: int) -> int:
        stack = self._stack_here()
        block = device_state.model.malloc(size, stream)
        failed = block is None
        self._take_log(device_state, stack)
        if failed:
            self._fail(device_state, device, size)
        assert block is not None
        block.owner = len(device_state.rows)
        self._write(
            device_state, Action.ALLOC, block.address, size, stream, block.arena.pool, stack
        )
        device_state.counts["allocated"] += 1
        return block.address

    def _fail(self, device_state: _DeviceState, device: int, size: int) -> None:
        rounded = device_state.model.rounded(size)
        segment = 20 << 20 if rounded < 10 << 20 else -(-rounded // (2 << 20)) * (2 << 20)
        segment = 2 << 20 if rounded <= SMALL_SIZE else segment
        free = device_state.free
        limit = int(device_state.fraction * device_state.total)
        for observer in self.observers:
            observer(device, segment, limit, free)
        gib = 1 << 30
        raise StandInOutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {size / gib:.2f} GiB. GPU {device} has a total "
            f"capacity of {device_state.total / gib:.2f} GiB of which {free / gib:.2f} GiB is free."
        )

    def _take_log(self, device_state: _DeviceState, stack: int = 0) -> None:
        for action, where, size, stream, pool in device_state.model.log:
            # What the driver has free is in an oom event, whatever the process may have of it.
            address = device_state.free if action == Action.OOM else where
            self._write(device_state, Action(action), address, size, stream, pool, stack)
        device_state.model.log.clear()

    def _write(
        self,
        device_state: _DeviceState,
        action: Action,
        address: int,
        size: int,
        stream: int,
        pool: int,
        stack: int,
    ) -> None:
        recording = self.recording
        with_stack = recording is None or recording.context in ("alloc", "all")
        if recording is not None and action.name.lower() not in recording.skipped:
            device_state.ring.add(len(device_state.rows), recording.max_entries)
        device_state.rows.append(
            _HistoryRow(
                int(action),
                address,
                size,
                stream,
                pool,
                time.time_ns() // 1000,
                stack,
                self._label(),
                with_stack,
            )
        )

    def _stack_here(self) -> int:
        if self.recording is None or self.recording.context is None:
            return 0
        if getattr(self._thread, "bare", False):
            return 0
        frame: FrameType | None = sys._getframe(1)
        frames: list[Frame] = []
        while frame is not None and len(frames) < _MOST_FRAMES:
            code = frame.f_code
            if code.co_filename not in self.hidden:
                frames.append(Frame(code.co_name, code.co_filename, frame.f_lineno))
            frame = frame.f_back
        return self._row("stacks", tuple(self._row("frames", f) for f in frames))

    def _free_stack(self, of_alloc: int) -> int:
        """Entries of a free bear the allocation's stack, with ``context="all"`` their own."""
        is_all = self.recording is not None and self.recording.context == "all"
        return self._stack_here() if is_all else of_alloc

    def _label(self) -> int:
        text = getattr(self._thread, "metadata", "")
        return self._row("labels", Label(annotation=text)) if text else 0

    def _row(self, table: str, key: Any) -> int:
        rows = self._tables[table]
        return rows.setdefault(key, len(rows))

    def _trace(self, ordinal: int, rows: Any, shift_us: int = 0) -> Trace:
        device_state = self.devices[ordinal]
        names = ("action", "address", "size", "stream", "pool", "time_us", "stack", "label")
        columns = {n: [getattr(row, n) for row in device_state.rows] for n in names}
        columns["time_us"] = [time_us + shift_us for time_us in columns["time_us"]]
        whole: Events = Events.build(len(device_state.rows), **columns)
        bare = np.asarray([not row.has_stack for row in device_state.rows], dtype=bool)
        events_shown = replace(whole, stack=np.where(bare, 0, whole.stack))
        end: State = state_of(device_state.model, Origins(whole))
        return Trace(
            device=f"cuda:{ordinal}",
            events=events_shown.take(np.asarray(list(rows), dtype=np.int64)),
            tables=Tables(**{name: tuple(table) for name, table in self._tables.items()}),
            end=end,
            settings=dict(self._settings),
            torch_version=self.__version__,
        )
