"""CUDA memory by the native part: each entry of torch's recorder as it happens, with exact labels.

There is no ring that could overflow, no snapshot to read between the ends of a window, and no label
to be found by the time: every row carries the place of the thread that made it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from memprof.sources.cuda.avoid_compiler_import import compiler_left_out
from memprof.sources.cuda.history_calls import HistoryCalls, recording_options
from memprof.sources.cuda.intern_tables import is_machinery
from memprof.sources.cuda.memory_history import SHARED
from memprof.sources.cuda.source_with_owners import OwnedCudaSource
from memprof.sources.loop.loop_watch import LoopWatch
from memprof.sources.loop.thread_state import NO_TASK
from memprof.sources.native_reads import NativeReads
from memprof.sources.native_rows import ROW, RowAlarm, RowLabels, Rows
from memprof.sources.owners.live_blocks import LivingBlocks
from memprof.sources.protocol import Chunk, Interner, LastRead
from memprof.sources.stacks import is_own, recorded_frames
from memprof.sources.tensor_addresses import PlaceOf, place_of
from memprof.trace import EMPTY, Action, Events, State

__all__ = ["CudaAllocatorSource"]

_SLACK_US = 10_000
"""By no more does a row's time differ from the order in which threads wrote them down."""


class CudaAllocatorSource(OwnedCudaSource):
    """Records what torch's CUDA allocator tells of, whoever else reads its recorder."""

    def __init__(
        self,
        interner: Interner,
        loop_watch: LoopWatch,
        native: Any,
        torch: Any = None,
        place: PlaceOf = place_of,
    ) -> None:
        """``native`` is the module that `memprof.native.load` gives."""
        super().__init__(interner, loop_watch, torch, place)
        self._native = native
        self.alarm = RowAlarm(native)
        native.cuda_forget_tables()
        self._row_labels = RowLabels(interner, loop_watch, native)
        self._tables = _Tables(interner)
        self._calls = HistoryCalls(self._torch, self._program_calls, self._program_called)
        self._is_on = False
        self._losses = 0
        self._texts: list[str] = []
        self._reads: dict[int, NativeReads] = {}
        self._last_reads: dict[str, list[LastRead]] = defaultdict(list)

    def counters(self) -> Sequence[Any]:
        """torch's own figures, as `OwnedCudaSource`."""
        if self._is_on:
            self._row_labels.step_began()
            for reads in self._reads.values():
                reads.step_ended()
        return super().counters()

    def drain(self) -> Sequence[Chunk]:
        """The entries since the last drain, with owners, and what is known of last reads."""
        ready = list(super().drain())
        for at in reversed(range(len(ready))):  # the last one: they are of events before
            chunk = ready[at]
            reads = self._last_reads.pop(chunk.device, None)
            if reads:
                ready[at] = msgspec.structs.replace(chunk, last_reads=reads)
        return ready

    def pending_events(self) -> int:
        """Rows that wait."""
        return int(self._native.cuda_pending()[0]) if self._is_on else 0

    def is_recording(self) -> bool:
        """Whether rows are written."""
        return self._is_on

    def is_over(self) -> bool:
        """Whether more rows waited than there is room for, so that the window has a gap."""
        return self._is_on and self._losses > 0

    def begin_window(self) -> Mapping[str, State]:
        """The states, with owners; called again in a window it adds devices that are new."""
        if not self._in_window:
            self._in_window = True
            self._devices_begun, self._end, self._chunks, self._ready = set(), {}, [], []
            self._losses = 0
            anew = True
        else:
            anew = False
        if not self._can_record():
            return {}
        already = self._is_on
        self._look()
        self._record()
        states = self._empty_states() if already else self._start_states()
        self._live.sightings.start()
        return self._live.begin(states, anew=anew)

    def end_window(self) -> Mapping[str, State]:
        """Stop; the states are those after the last event."""
        self._settle()
        states: Mapping[str, State] = {}
        if self._is_on and self._recorder.can_see_blocks():
            states = self._live.end(self._start_states())
        self._stop()
        self._in_window = False
        self._live.sightings.stop()
        return states

    def living(self, device: str) -> LivingBlocks:
        """The blocks in use on a device at this moment; columns, they hold nothing."""
        if not self._in_window:
            return super().living(device)
        self._settle()
        return self._live.alive(device)

    def notes(self) -> Sequence[str]:
        """What was not seen, since the last call."""
        notes = [*super().notes()]
        if self._losses:
            notes.append(
                f"{self._losses} entries came faster than they could be written down; the window "
                "ends there"
            )
        failure, self._row_labels.failure = self._row_labels.failure, ""
        return [*notes, *([failure] if failure else [])]

    # -- the recorder --------------------------------------------------------------------------

    def _record(self) -> bool:
        if not self._is_on:
            self._native.cuda_attach()
            self._gather(on=True)
            self._calls.open()
            self._last_reads.clear()
            devices = range(self._torch.cuda.device_count())
            self._reads = {one: NativeReads(self._native, one) for one in devices}
            for reads in self._reads.values():
                reads.begin()
            self._native.cuda_begin()
            for one, reads in self._reads.items():
                reads.note_largest(int(self._torch.cuda.memory_allocated(one)))
            self._is_on = True
            self._row_labels.start()
            self._backward_stacks.start()
        return True

    def _stop(self) -> None:
        self._row_labels.stop()
        self._backward_stacks.stop()
        was_on, self._is_on = self._is_on, False
        self._calls.close()
        for reads in self._reads.values():
            reads.end()
        if was_on:
            self._native.cuda_end()
            self._gather(on=False)

    def _gather(self, *, on: bool) -> None:
        """Have torch gather stacks, without a ring; left alone where the program records itself."""
        if on and self._torch._C._cuda_isHistoryEnabled():
            self._say(SHARED)
            return
        if on or self._recorder.gathers:
            self._recorder.gathers = on
            record = self._torch.cuda.memory._record_memory_history
            with self._calls.own():
                record("state" if on else None, **recording_options(self._torch, on=on))

    def _program_calls(self, turns_on: bool) -> None:
        """The program is about to start or stop its own recording: theirs begins with nothing."""
        if turns_on:
            self._gather(on=False)
            self._say(SHARED)

    def _program_called(self, turns_on: bool) -> None:
        """It has; entries come as before, stacks as it asked for them."""
        if not turns_on and self._is_on:
            self._gather(on=True)

    def _take(self) -> None:
        """Turn the rows that wait into events, by device."""
        if not self._is_on:
            return
        with self._recorder.lock:
            self._row_labels.crossed()
            self._look()
            self._losses = int(self._native.cuda_pending()[1])
            with compiler_left_out(self._torch):
                blob, frames, stacks, pools, texts = self._native.cuda_take()
            self._tables.add(frames, stacks, pools)
            self._texts = texts
            rows = np.frombuffer(blob, ROW)
            is_look = rows["action"] == Action.SNAPSHOT
            rows = rows[~is_look] if is_look.any() else rows  # a copy of all takes its time
            devices = np.unique(rows["device"]).tolist()
            for device in devices:
                is_here = slice(None) if len(devices) == 1 else rows["device"] == device
                events = self._events_of(rows[is_here])
                self._chunks.append(Chunk(f"cuda:{device}", events))
                if device in self._reads:
                    self._last_reads[f"cuda:{device}"] += self._reads[device].take(events)
            if len(rows):
                self._backward_stacks.forget_before(int(rows["time_ns"][-1]) // 1000 - _SLACK_US)

    def _events_of(self, rows: Rows) -> Events:
        label = self._row_labels.of(rows)
        if rows["metadata"].any():
            texts = ["", *self._texts]
            label = self._row_labels.annotated(label, [texts[i] for i in rows["metadata"].tolist()])
        time_us = rows["time_ns"] // 1000
        stack = self._tables.stacks[rows["stack"]]
        events: Events = Events.build(
            len(rows),
            action=np.minimum(rows["action"], Action.OTHER),
            address=rows["address"].astype(np.int64),
            size=rows["size"],
            stream=rows["stream"].astype(np.int64),
            time_us=time_us,
            stack=self._backward_stacks.fill(stack, time_us, rows["task"] != NO_TASK),
            label=label,
            pool=self._tables.pools[rows["pool"]],
        )
        return events


class _Tables:
    """Rows of the run's tables by the native part's own numbers, which only grow."""

    def __init__(self, interner: Interner) -> None:
        self._interner = interner
        self._frames: list[int] = []
        self._machinery: set[int] = set()
        self.stacks = np.asarray([EMPTY], dtype=np.int32)
        self.pools = np.asarray([EMPTY], dtype=np.int32)

    def add(
        self, frames: Sequence[tuple[str, str, int]], stacks: Sequence[bytes], pools: bytes
    ) -> None:
        """Take in what is new; frames of memprof are left out of the stacks."""
        for name, filename, line in frames:
            own = is_own(filename)
            if own or is_machinery(filename):
                self._machinery.add(len(self._frames))
            self._frames.append(-1 if own else self._interner.frame(name, filename, line))
        new = [self._stack(np.frombuffer(stack, np.int32).tolist()) for stack in stacks]
        self.stacks = np.concatenate([self.stacks, np.asarray(new, dtype=np.int32)])
        pairs = np.frombuffer(pools, np.uint64).reshape(-1, 2).tolist()
        rows = [self._interner.pool((first, second)) for first, second in pairs]
        self.pools = np.asarray([EMPTY, *rows], dtype=np.int32)

    def _stack(self, frames: Sequence[int]) -> int:
        if self._machinery.issuperset(frames):
            return EMPTY  # of a thread of autograd's
        rows = [self._frames[frame] for frame in frames]
        return self._interner.stack(recorded_frames([row for row in rows if row >= 0]))
