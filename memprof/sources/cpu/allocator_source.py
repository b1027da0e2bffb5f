"""CPU memory as torch's allocator gives it, by the native part: every allocation of every thread.

Unlike a dispatch mode it leaves autograd alone, and sees temporaries inside operators and buffers
of compiled graphs. Whose a block is, is learnt as on CUDA: from what points at its address.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import CodeType
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from memprof.cpython.signal_errors import covers_entry, is_of_signal, raised_at_death
from memprof.cpython.thread_clock import thread_ns
from memprof.records import DeviceInfo
from memprof.sources.cpu.cloned_storages import ClonedStorages
from memprof.sources.cpu.find_storages import StorageSearch
from memprof.sources.cpu.throttle import Throttle
from memprof.sources.guarded_access import plain_attributes
from memprof.sources.loop.line_turns import LineTurns
from memprof.sources.loop.loop_watch import LoopWatch
from memprof.sources.loop.main_thread import MainThread
from memprof.sources.native_reads import CPU, NativeReads
from memprof.sources.native_rows import ROW, RowAlarm, RowLabels, Rows
from memprof.sources.owners.live_blocks import LiveBlocks, LivingBlocks
from memprof.sources.protocol import Chunk, Counters, Interner, LastRead
from memprof.sources.stacks import is_own, recorded_frames
from memprof.sources.tensor_addresses import PlaceOf, place_of
from memprof.trace import (
    EMPTY,
    NOT_RECORDED,
    Action,
    Blocks,
    BlockState,
    Column,
    Events,
    Label,
    State,
)

if TYPE_CHECKING:  # a millisecond of a recording's beginning
    import numpy.typing as npt

__all__ = ["CpuAllocatorSource"]

_DEVICE = "cpu"
BLOCK_ROW = np.dtype(
    [("address", "u8"), ("size", "i8"), ("serial", "i8"), ("stack", "i4"), ("label", "i4")]
)
"""As `Block` in ``memprof/native/cpu.cpp``."""
_LEARNING = 0.02
"""Share of the time that looking for owners between drains may take."""

Ints: TypeAlias = "npt.NDArray[np.int64]"


class CpuAllocatorSource:
    """Counts what torch's CPU allocator hands out; in windows it records each allocation."""

    name = "cpu"
    event_us = 0.5
    """What the allocator's hook takes for a row, which nobody times; see docs/overhead.md."""

    def __init__(
        self, interner: Interner, loop_watch: LoopWatch, native: Any, place: PlaceOf = place_of
    ) -> None:
        """``native`` is the module that `memprof.native.load` gives."""
        self.place = place
        self._interner = interner
        self._loop_watch = loop_watch
        self._native = native
        self.alarm = RowAlarm(native)
        self._live = LiveBlocks(interner, loop_watch, place, of_cpu=True)
        self._stacks = _StackRows(interner, native.cpu_new_stacks)
        self._main_thread = MainThread(self._follow_lines)
        self._line_turns = LineTurns(native.cpu_places)
        self._following_us = 0.0
        self._labels = RowLabels(interner, loop_watch, native)
        self._search = StorageSearch(loop_watch.guard)
        self._foreign = _ForeignStorages(native)
        self._reads = NativeReads(native, CPU)
        self._last_reads: list[LastRead] = []
        self._clones = ClonedStorages(self._see_clone)
        self._pid = os.getpid()
        self._in_window = False
        self._ready: list[Chunk] = []
        self._state = State()
        self._losses = 0
        self._notes: list[str] = []
        self._at_leisure = Throttle(_LEARNING)

    def devices(self) -> Sequence[DeviceInfo]:
        """The CPU."""
        return [DeviceInfo(device=_DEVICE, name="CPU", backend="cpu", recorder="allocator")]

    def open(self) -> None:
        """Count from now on.

        Raises:
            RuntimeError: the program has an allocator of its own that cannot be followed.
        """
        self._native.cpu_start()
        self._clones.open()

    def close(self) -> None:
        """Put torch's allocator back; safe to call twice."""
        self._stop()
        self._main_thread.close()
        self._clones.close()
        if os.getpid() == self._pid:
            self._native.cpu_stop()
        self._foreign.clear()

    def counters(self) -> Sequence[Counters]:
        """Bytes in use, also between windows; what other allocators made only in windows."""
        if self._in_window:  # another step from now on, and this thread is the loop's
            self._labels.step_began()
            self._reads.step_ended()
            self._at_leisure(self._learn)
        allocated, peak, losses, _ = self._native.cpu_counters()
        self._losses = losses
        return [
            Counters(
                device=_DEVICE,
                allocated=allocated,
                peak_allocated=peak,
                active=allocated,
                requested=allocated,
            )
        ]

    def begin_window(self) -> Mapping[str, State]:
        """What is in use, and whose; every allocation from now on."""
        if os.getpid() != self._pid:
            return {}
        self._ready = []
        self._look(thorough=True)
        self._at_leisure.reset()
        self._losses = 0
        self._start()
        self._reads.begin()
        self._last_reads = []
        self._state = self._state_of(self._native.cpu_begin())
        self._reads.note_largest(int(self._state.blocks.size.max(initial=0)))
        self._live.sightings.start()
        return self._live.begin({_DEVICE: self._state}, anew=True)

    def pending_events(self) -> int:
        """Rows that wait; a free makes two events."""
        return int(self._native.cpu_pending()) * 3 // 2

    def drain(self) -> Sequence[Chunk]:
        """The events since the last drain, with owners."""
        if not self._in_window:
            return []
        self._settle()
        ready, self._ready = self._ready, []
        if ready and self._last_reads:
            reads, self._last_reads = self._last_reads, []
            ready[-1] = msgspec.structs.replace(ready[-1], last_reads=reads)
        return ready

    def end_window(self) -> Mapping[str, State]:
        """Record no more; the state that the events lead to."""
        if not self._in_window:
            return {}
        rows, blocks = self._native.cpu_take(True)
        self._native.cpu_end()
        self._stop()
        if os.getpid() != self._pid:
            return {}
        state = self._state_of(_undone(blocks, rows))
        states = self._live.end({_DEVICE: state})
        self._live.sightings.stop()
        return states

    def take_spent_us(self) -> float:
        """What following the program's lines took since the last call."""
        following_us, self._following_us = self._following_us, 0.0
        return following_us

    def is_over(self) -> bool:
        """Whether more rows waited than there is room for, so that the window has a gap."""
        return self._in_window and self._losses > 0

    def living(self, device: str = _DEVICE) -> LivingBlocks:
        """The blocks in use; columns, they hold nothing."""
        if self._in_window:
            self._settle(with_state=True)
        else:
            self._live.refresh({_DEVICE: self._state_of(self._native.cpu_living())})
        return self._live.living(device)

    def label_of(self, row: int) -> Label:
        """The label in a row."""
        return self._live.labels.of(row)

    def notes(self) -> Sequence[str]:
        """What was not seen, since the last call."""
        notes, self._notes = [*self._notes, *self._loop_watch.notes()], []
        failure, self._live.sightings.failure = self._live.sightings.failure, ""
        if self._losses:
            notes.append(
                f"{self._losses} allocations came faster than they could be written down; the "
                "window ends there"
            )
        return [*notes, *([failure] if failure else [])]

    def _start(self) -> None:
        self._in_window = True
        self._labels.start()
        is_main = threading.current_thread() is threading.main_thread()
        follows = is_main and self._loop_watch.follows_lines
        waiting = self._main_thread.waiting() if follows else None
        self._native.cpu_watch_turns(*(waiting or ()))

    def _stop(self) -> None:
        self._in_window = False
        self._labels.stop()
        self._reads.end()
        self._native.cpu_watch_turns()

    def _follow_lines(self) -> None:
        """Look whether a loop came round in which nothing but operators run: one of them has run.

        An operator may allocate several times before this is called: that is no way of the
        program's.
        """
        if not (self._in_window and self._loop_watch.follows_lines):
            self._native.cpu_watch_turns()
            return
        began_ns = thread_ns()
        ways = self._native.cpu_take_turns()
        is_over = False
        for at, (before, after, time_ns) in enumerate(zip(*[iter(ways)] * 3, strict=True)):
            if at and before == after:
                continue
            if self._line_turns.jump(before, after) is None:
                self._native.cpu_no_turn(before, after)
            elif self._line_turns.sees_pair(before, after):
                if not is_over:
                    self._labels.turned(time_ns)
                is_over = True
                # A call for each turn of a loop of small operators would cost more than they.
                self._native.cpu_skip_turns(before, after, self._line_turns.skip())
        self._following_us += (thread_ns() - began_ns) / 1000
        if is_over:
            self._loop_watch.line_turned(*self._line_turns.line)

    # -- what was recorded ---------------------------------------------------------------------

    def _settle(self, *, with_state: bool = False) -> None:
        self._labels.crossed()  # a backward pass that has ended is noticed here
        self._look(thorough=False)
        rows, blocks = self._native.cpu_take(with_state)
        if not rows and not with_state:
            return  # as in a program on a GPU: whose the blocks are is asked when there are some
        chunk = Chunk(_DEVICE, self._events(np.frombuffer(rows, ROW)))
        self._last_reads += self._reads.take(chunk.events)
        ends = {_DEVICE: self._state_of(blocks)} if with_state else {}
        self._ready += self._live.take([chunk], ends)

    def _events(self, rows: Rows) -> Events:
        """An allocation is one event, a free two: torch's CPU allocator waits for nothing."""
        stack = self._stacks.rows_of(rows["stack"])
        label = self._labels.of(rows)
        is_alloc = rows["action"] == Action.ALLOC
        width = np.where(is_alloc, 1, 2)
        index = np.repeat(np.arange(len(rows)), width)
        first = np.cumsum(width) - width
        action = np.where(is_alloc[index], Action.ALLOC, Action.FREE_REQUESTED)
        action[first[~is_alloc] + 1] = Action.FREE_COMPLETED
        events: Events = Events.build(
            len(index),
            action=action,
            address=rows["address"].astype(np.int64)[index],
            size=rows["size"][index],
            time_us=rows["time_ns"][index] // 1000,
            stack=stack[index],
            label=label[index],
        )
        return events

    def _state_of(self, blob: bytes) -> State:
        blocks = np.frombuffer(blob, BLOCK_ROW)
        blocks = blocks[np.argsort(blocks["address"], kind="stable")]
        stack = self._stacks.rows_of(blocks["stack"])
        block_columns: Blocks = Blocks.build(
            len(blocks),
            address=blocks["address"].astype(np.int64),
            size=blocks["size"],
            requested=blocks["size"],
            state=np.full(len(blocks), BlockState.ACTIVE_ALLOCATED),
            segment=np.full(len(blocks), NOT_RECORDED),
            stack=stack,
            label=np.where(stack != EMPTY, blocks["label"], EMPTY),
        )
        return State(blocks=block_columns)

    def _look(self, *, thorough: bool) -> None:
        """Find the memory that torch's allocator did not make: of numpy, of files, of others."""
        with plain_attributes():
            storages = (
                self._search.everything() if thorough else self._search.recent(thorough=False)
            )
            self._loop_watch.guard.each(self._foreign.see, storages)

    def _see_clone(self, storage: Any) -> None:
        """Count what the job has just cloned; whatever that storage is, nothing raises into it."""
        self._loop_watch.guard.each(self._foreign.see_made, [storage])

    def _learn(self) -> None:
        """At a step's end: whose blocks are, while they are there; they may be gone by a drain."""
        self._live.sightings.note_all()


class _ForeignStorages:
    """Storages around memory that torch's allocator did not make, as long as they live."""

    def __init__(self, native: Any) -> None:
        self._native = native
        self._refs: dict[int, weakref.ref[Any]] = {}
        self._addresses: dict[int, tuple[int, int]] = {}
        """By the storage's key its address and bytes."""

    def see_made(self, storage: Any) -> None:
        """Count a storage that has just been made, by the code that runs here."""
        self.see(storage, made_here=True)

    def see(self, storage: Any, *, made_here: bool = False) -> None:
        """Count a storage, unless its memory is counted already."""
        size = storage.nbytes()
        if not size:
            return
        key = storage._cdata
        if key in self._refs:
            return
        address = storage.data_ptr()
        if address and self._native.cpu_foreign(True, address, size, made_here):
            self._addresses[key] = (address, size)
            self._refs[key] = weakref.ref(storage, partial(self._on_death, key))

    def clear(self) -> None:
        """Follow none any more."""
        self._refs.clear()
        self._addresses.clear()

    @covers_entry
    def _on_death(self, key: int, ref: object) -> object:
        try:
            if key not in self._refs or self._refs[key] is not ref:
                return None
            address, size = self._addresses[key]
            del self._refs[key], self._addresses[key]  # no signal is looked for until the end
            self._native.cpu_foreign(False, address, size)
        except BaseException as error:
            if is_of_signal(error):
                return self._on_death(key, ref), raised_at_death(error)
            raise
        return None


class _StackRows:
    """Rows of the run's table of stacks, by the native part's own numbers."""

    def __init__(self, interner: Interner, new_stacks: Callable[[], list[Any]]) -> None:
        self._interner = interner
        self._new_stacks = new_stacks
        self._rows: list[int] = [EMPTY]
        self._frames: dict[tuple[CodeType, int], int] = {}

    def rows_of(self, stacks: Ints) -> Column:
        """The rows of stacks that the native part wrote."""
        if len(stacks) and int(stacks.max()) >= len(self._rows):
            self._rows += [self._row(frames) for frames in self._new_stacks()]
        rows: Column = np.asarray(self._rows, dtype=np.int32)[stacks]
        return rows

    def _row(self, frames: Sequence[tuple[CodeType, int]]) -> int:
        rows = [self._frame(*frame) for frame in frames if not is_own(frame[0].co_filename)]
        return self._interner.stack(recorded_frames(rows))

    def _frame(self, code: CodeType, line: int) -> int:
        row = self._frames.get((code, line))
        if row is None:
            name = getattr(code, "co_qualname", code.co_name)
            row = self._interner.frame(name, code.co_filename, line)
            self._frames[code, line] = row
        return row


def _undone(blocks: bytes, rows: bytes) -> bytes:
    """The blocks as they were before some rows, which nobody will write."""
    waiting = np.frombuffer(rows, ROW)
    if not len(waiting):
        return blocks
    by_address = {int(one["address"]): one for one in np.frombuffer(blocks, BLOCK_ROW)}
    for row in waiting[::-1]:
        address = int(row["address"])
        if row["action"] == Action.ALLOC:
            by_address.pop(address, None)
        else:
            block = np.zeros((), BLOCK_ROW)
            block["address"], block["size"] = address, row["size"]
            by_address[address] = block[()]
    return b"".join(one.tobytes() for one in by_address.values())
