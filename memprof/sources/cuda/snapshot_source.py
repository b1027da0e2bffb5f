"""CUDA memory through torch's own allocator: counters at step ends, its recorder in windows.

Only what torch offers is used, version by version; facts in ``torch/cuda/memory.py``. The layout of
its snapshot is `memprof.snapshot`'s matter. CUDA is never initialised from here.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from memprof.cpython.signal_errors import guarded_errors
from memprof.cpython.thread_clock import thread_us
from memprof.records import DeviceInfo
from memprof.snapshot.reader import traces_from_snapshot
from memprof.snapshot.unpickler import collector_paused
from memprof.sources.cuda.backward_stacks import BackwardStacks
from memprof.sources.cuda.devices import COUNTING, NATIVE, USED, backend, used, uuid_of
from memprof.sources.cuda.intern_tables import InternedTables, with_stacks_of
from memprof.sources.cuda.label_timeline import LabelRecorder
from memprof.sources.cuda.memory_history import HistoryOwner, MemoryHistory, operations_of
from memprof.sources.cuda.oom_observer import Exhausted, OomWatch, ooms_counted
from memprof.sources.cuda.segments import segments_now
from memprof.sources.loop.loop_watch import LoopWatch
from memprof.sources.loop.main_thread import Beat, MainThread
from memprof.sources.protocol import Chunk, Counters, Interner
from memprof.sources.tensor_addresses import PlaceOf, place_of
from memprof.trace import NOT_RECORDED, Label, State, Trace

__all__ = ["CudaSource"]

_LOOK_AGAIN = 50
"""Step ends between two looks for further devices that torch has begun to use."""
PASSING_US = 20_000
"""In a window the recorder's filling is looked at so often, at boundaries of modules."""
_CLOCKS_DIFFER_US = 10_000
"""By less than this torch's clock is behind ours."""
BEAT_MS = 15
"""And so often where none is crossed, if the main thread runs Python."""


@dataclass(slots=True)
class _Peaks:
    """torch's peak counters as last read; they are the user's and are never reset from here."""

    allocated: int
    reserved: int


class CudaSource:
    """The devices that torch holds memory on, once the job has initialised CUDA.

    Peaks between windows: torch's peak counter is not ours to reset, so a step's peak is known only
    when it raised the counter. In a window the trace has it.
    """

    name = "cuda"
    event_us = 0.6
    """What torch's own recorder takes for an entry, which nobody times."""

    def __init__(self, interner: Interner, loop_watch: LoopWatch, torch: Any = None) -> None:
        """``torch`` is the module, or a stand-in of the parts used here."""
        self.on_oom: Callable[[Exhausted], None] | None = None
        """Told on the failing thread when a device runs out of memory."""
        self.place: PlaceOf = place_of
        """Where a tensor of the program lies."""
        self._loop_watch = loop_watch
        self._ooms: OomWatch | None = None
        self._keeper = LabelRecorder(loop_watch, self._passing, self._device)
        self._backward_stacks = BackwardStacks(interner, loop_watch)
        self._interner = interner
        self._torch = torch if torch is not None else sys.modules["torch"]
        self._pid = os.getpid()
        self._in_window = False
        self._ordinals: list[int] = []
        self._infos: dict[int, DeviceInfo] = {}
        self._peaks: dict[int, _Peaks] = {}
        self._until_look = 0
        self._devices_begun: set[int] = set()
        self._chunks: list[Chunk] = []
        self._passing_us = 0
        self._spent_us = 0.0
        self._end: dict[str, State] = {}
        self._notes: list[str] = []
        self._messages: set[str] = set()
        self._backend = ""
        self._cuda_hook: Callable[[], None] | None = None
        self._labels: list[Label] = []
        self._main_thread: MainThread | None = None
        self._beat: Beat | None = None
        self._recorder = MemoryHistory(
            self._torch, lambda: tuple(self._ordinals), self._take, self._say, self._clock_us
        )

    # -- the source ----------------------------------------------------------------------------

    def open(self) -> None:
        """Get ready; if CUDA is not initialised yet, be told when it is."""
        if self._is_initialized():
            self._look()
            self._watch_ooms()
        else:
            self._cuda_hook = self._on_initialization
            self._torch.cuda._lazy_call(self._cuda_hook)

    def close(self) -> None:
        """Stop torch's recorder if it was started here; safe to call twice."""
        if self._ooms is not None:
            self._ooms.close()
        hook, self._cuda_hook = self._cuda_hook, None
        calls = getattr(self._torch.cuda, "_queued_calls", [])
        calls[:] = [entry for entry in calls if entry[0] is not hook]
        self._stop()

    def devices(self) -> Sequence[DeviceInfo]:
        """The devices that torch has memory on; none before CUDA is initialised."""
        self._look_now_and_then()
        return tuple(self._infos[i] for i in self._ordinals)

    def counters(self) -> Sequence[Counters]:
        """torch's own figures; reading them neither synchronizes nor resets anything."""
        self._keeper.step_began()
        self._look_now_and_then()
        if self._backend not in COUNTING:
            return ()
        stats = {i: self._torch.cuda.memory_stats_as_nested_dict(i) for i in self._ordinals}
        if self._recorder.is_filling():  # a drain may be put off for longer
            self._take()
        elif not self._in_window and self._backend == NATIVE:
            self._recorder.noticed({i: operations_of(one) for i, one in stats.items()})
        return tuple(self._counters(i, figures) for i, figures in stats.items())

    def begin_window(self) -> Mapping[str, State]:
        """Start torch's recorder; called again in a window it adds devices that are new.

        What the program records itself is shared; then there is no state at the beginning, as its
        entries may not reach back so far.
        """
        if not self._in_window:
            self._in_window = True
            self._devices_begun, self._end, self._chunks = set(), {}, []
            self._recorder.forget_losses()
        if not self._can_record():
            return {}
        already = self._recorder.owner is not HistoryOwner.NOBODY
        self._look()
        if not self._record() or self._recorder.is_shared:
            return {}
        return self._empty_states() if already else self._start_states()

    def pending_events(self) -> int:
        """From torch's counters of allocations and frees; a snapshot would take far too long."""
        return self._recorder.pending() if self._recorder.owner is not HistoryOwner.NOBODY else 0

    def drain(self) -> Sequence[Chunk]:
        """The recorder's entries since the last drain, through a snapshot."""
        self._take()
        with self._recorder.lock:
            batches, self._chunks = self._chunks, []
        return batches

    def end_window(self) -> Mapping[str, State]:
        """Stop the recorder; the states are those of the last drain, so they fit its events."""
        states, self._end = self._end, {}
        self._stop()
        self._in_window = False
        return states

    def is_over(self) -> bool:
        """Whether the window has a gap here, or none can be had: another may do better."""
        recorder = self._recorder
        return self._in_window and (recorder.is_over or recorder.may_try_again())

    def take_spent_us(self) -> float:
        """Time taken outside the calls of the tracker, since the last call."""
        spent_us, self._spent_us = self._spent_us, 0.0
        return spent_us

    def at_failure(self, what: Exhausted) -> None:
        """Add what the device holds to a failure that torch's observer was not told of."""
        if self._ooms is not None and self._is_initialized():
            self._ooms.describe(what)

    def notes(self) -> Sequence[str]:
        """What was not seen, since the last call."""
        notes, self._notes = [*self._notes, *self._loop_watch.notes()], []
        return notes

    # -- devices -------------------------------------------------------------------------------

    def _is_initialized(self) -> bool:
        return os.getpid() == self._pid and bool(self._torch.cuda.is_initialized())

    def _on_initialization(self) -> None:
        """Run by torch right after it initialised CUDA, before anything was allocated."""
        try:
            if self._cuda_hook is None or os.getpid() != self._pid:
                return
            self._watch_ooms()
            if self._in_window and self._is_native():
                self._record()
        except guarded_errors() as error:  # torch would raise it into the job
            self._notes.append(f"recording could not start with CUDA: {error!r}")

    def _watch_ooms(self) -> None:
        if self._ooms is None and self.on_oom is not None:
            self._ooms = OomWatch(
                self._torch,
                self._loop_watch,
                self.on_oom,
                self.place,
                self._recorder.can_see_blocks,
            )
            why_not = self._ooms.open()
            if why_not:
                self._say(why_not)

    def _look_now_and_then(self) -> None:
        if self._until_look <= 0 and self._is_initialized():
            self._look()
        self._until_look -= 1

    def _look(self) -> None:
        self._backend = self._backend or backend(self._torch)
        ordinals = sorted({*self._infos, *used(self._torch)})
        for i in ordinals:
            earlier_info = self._infos.get(i)
            if earlier_info is None:
                self._infos[i] = self._info(i)
            elif (fraction := self._fraction(i)) != earlier_info.memory_fraction:
                self._infos[i] = replace(earlier_info, memory_fraction=fraction)
        self._ordinals = ordinals
        USED.add({info.device: info.uuid for info in self._infos.values() if info.uuid})
        self._until_look = _LOOK_AGAIN if ordinals else 0

    def _info(self, ordinal: int) -> DeviceInfo:
        properties = self._torch.cuda.get_device_properties(ordinal)
        return DeviceInfo(
            device=f"cuda:{ordinal}",
            name=str(properties.name),
            total_bytes=int(properties.total_memory),
            uuid=uuid_of(self._torch, ordinal) or "",
            backend=self._backend,
            memory_fraction=self._fraction(ordinal),
            settings=_settings_of(os.environ),
        )

    def _fraction(self, ordinal: int) -> float:
        """What part of the device the job may take."""
        cuda = self._torch.cuda
        if self._backend not in COUNTING or not hasattr(cuda, "get_per_process_memory_fraction"):
            return 1.0
        if cuda.current_device() == ordinal:
            return float(cuda.get_per_process_memory_fraction(ordinal))
        with cuda.device(ordinal):  # torch 2.7 makes it the thread's current one and leaves it so
            return float(cuda.get_per_process_memory_fraction(ordinal))

    def _counters(self, ordinal: int, stats: Mapping[str, Any]) -> Counters:
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        now = _Peaks(allocated["peak"], reserved["peak"])
        before, self._peaks[ordinal] = self._peaks.get(ordinal, now), now
        return Counters(
            device=f"cuda:{ordinal}",
            allocated=allocated["current"],
            peak_allocated=_raise_peak(allocated["peak"], before.allocated),
            reserved=reserved["current"],
            peak_reserved=_raise_peak(reserved["peak"], before.reserved),
            active=_current(stats, "active_bytes"),
            requested=_current(stats, "requested_bytes"),
            inactive_split=_current(stats, "inactive_split_bytes"),
            retries=stats.get("num_alloc_retries", NOT_RECORDED),
            ooms=ooms_counted(stats),
        )

    # -- the recorder --------------------------------------------------------------------------

    def _record(self) -> bool:
        """Have entries recorded from now on; whether they are."""
        already = self._recorder.owner is not HistoryOwner.NOBODY
        is_on = self._recorder.begin()
        if is_on and not already:
            self._keeper.start()
            self._backward_stacks.start()
            self._start_beat()
        return is_on

    def _start_beat(self) -> None:
        """A loop that crosses no boundary is asked in its own thread, if that is the main one."""
        self._stop_beat()
        self._main_thread = MainThread(self._beaten)
        self._beat = Beat(self._main_thread.request, BEAT_MS)
        self._beat.start()

    def _beaten(self) -> None:
        self._passing(time.time_ns() // 1000)

    def _stop_beat(self) -> None:
        beat, self._beat = self._beat, None
        if beat is not None:
            beat.close()
        if self._main_thread is not None:
            self._main_thread.close()

    def _stop(self) -> None:
        self._stop_beat()
        self._keeper.stop()
        self._backward_stacks.stop()
        if os.getpid() == self._pid:
            self._recorder.end()
        else:
            self._recorder.forget()

    def _can_record(self) -> bool:
        return self._is_initialized() and self._is_native()

    def _is_native(self) -> bool:
        """Whether torch's recorder works with the allocator; why not is said once."""
        self._backend = self._backend or backend(self._torch)
        if self._backend != NATIVE:
            extent = "counters only" if self._backend in COUNTING else "the driver's figures only"
            self._say(
                f"torch's recorder does not work with the allocator {self._backend!r}: "
                f"{extent}, no single allocations"
            )
        return self._backend == NATIVE

    def _clock_us(self) -> float:
        return _clock_us()

    def _say(self, message: str) -> None:
        if message not in self._messages:
            self._messages.add(message)
            self._notes.append(message)

    def _empty_states(self) -> Mapping[str, State]:
        """Of devices that came into use while the recorder ran: they had held nothing."""
        self._look()
        new = [i for i in self._ordinals if i not in self._devices_begun]
        self._devices_begun.update(new)
        return {f"cuda:{i}": State() for i in new}

    def _start_states(self) -> Mapping[str, State]:
        """What the devices hold at the moment the recorder starts."""
        self._look()
        self._devices_begun = set(self._ordinals)
        states = {f"cuda:{i}": State() for i in self._ordinals}
        began_us = thread_us()
        with collector_paused():
            for trace in traces_from_snapshot(
                {"segments": segments_now(self._torch)}, is_live=True
            ):
                if trace.device in states and trace.end is not None:
                    states[trace.device] = InternedTables(self._interner, trace.tables).state(
                        trace.end
                    )
        blocks = sum(len(state.blocks) for state in states.values())
        self._recorder.saw_blocks(thread_us() - began_us, blocks)
        return states

    def _passing(self, time_us: int) -> None:
        """At a boundary in a window, on any thread: read what the recorder will not hold long."""
        if time_us < self._passing_us:
            return
        self._passing_us = time_us + PASSING_US
        if not self._recorder.lock.acquire(blocking=False):
            return
        try:
            began_us = thread_us()
            if not self._ordinals:
                self._look()
            if self._recorder.is_filling():
                self._take()
            self._spent_us += thread_us() - began_us
        finally:
            self._recorder.lock.release()

    def _take(self) -> None:
        """Read what is new, and keep it as events until the next drain."""
        with self._recorder.lock, collector_paused():
            began_us = thread_us()
            if self._recorder.owner is not HistoryOwner.NOBODY:
                self._look()
            looked_us = time.time_ns() // 1000 - _CLOCKS_DIFFER_US
            snapshot = self._recorder.look()
            if snapshot is None:
                return
            traces = traces_from_snapshot(snapshot, is_live=True)
            self._see_settings(traces)
            chunks = [self._chunk(t) for t in traces if not self._is_lost(t.device)]
            self._chunks += [chunk for chunk in chunks if len(chunk.events)]
            self._keeper.marks.forget_before(looked_us)
            self._backward_stacks.forget_before(looked_us)
            self._recorder.took(thread_us() - began_us)

    def _see_settings(self, traces: Sequence[Trace]) -> None:
        """The allocator's settings as they are now: the program may have changed them."""
        for ordinal, info in self._infos.items():
            for trace in traces:
                if trace.device == info.device:
                    settings = {
                        name: value for name, value in trace.settings.items() if value != ""
                    }
                    self._infos[ordinal] = replace(info, settings={**info.settings, **settings})

    def _device(self) -> int:
        return int(self._torch.cuda.current_device())

    def _is_lost(self, device: str) -> bool:
        return _ordinal(device) in self._recorder.incomplete_devices

    def _chunk(self, trace: Trace) -> Chunk:
        tables = InternedTables(self._interner, trace.tables, self._labels)
        device, own = _ordinal(trace.device), not self._recorder.is_shared
        passes = self._backward_stacks if own else None
        events = tables.events(trace.events, self._keeper.marks, device, passes)
        if trace.end is not None:
            state = self._end[trace.device] = tables.state(trace.end)
            if self._recorder.is_shared:
                events = with_stacks_of(state.blocks, events)
        return Chunk(trace.device, events)


def _ordinal(device: str) -> int:
    return int(device.removeprefix("cuda:"))


def _raise_peak(peak: int, before: int) -> int:
    """The peak if it was reached since the last look, else not known."""
    return peak if peak > before else NOT_RECORDED


def _current(stats: Mapping[str, Any], name: str) -> int:
    return int(stats[name]["all"]["current"]) if name in stats else NOT_RECORDED


def _settings_of(environment: Mapping[str, str]) -> dict[str, object]:
    """The allocator's settings as the environment gives them, under torch's own key."""
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        if environment.get(name):
            return {"PYTORCH_CUDA_ALLOC_CONF": environment[name]}
    return {}


def _clock_us() -> float:
    return time.perf_counter_ns() / 1000
