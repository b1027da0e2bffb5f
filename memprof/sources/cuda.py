"""CUDA memory through torch's own allocator: counters at step ends, its recorder in windows.

Only what torch offers is used, version by version; facts in ``torch/cuda/memory.py``. The layout of
its snapshot is `memprof.snapshot`'s matter. CUDA is never initialised from here.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memprof.records import DeviceInfo
from memprof.snapshot import traces_from_snapshot
from memprof.sources.boundaries import Boundaries
from memprof.sources.marks import MarkKeeper
from memprof.sources.ooms import Exhausted, OomWatch, segments_now
from memprof.sources.protocol import Chunk, Counters, Interner
from memprof.sources.remapped import Remapped
from memprof.trace import NOT_RECORDED, State, Trace

__all__ = ["CudaSource"]

_MOST_EVENTS = 500_000
"""Entries of torch's ring per device; a snapshot takes about 7 µs for each."""
_LOOK_AGAIN = 50
"""Step ends between two looks for further devices that torch has begun to use."""


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

    def __init__(self, interner: Interner, boundaries: Boundaries, torch: Any = None) -> None:
        """``torch`` is the module, or a stand-in of the parts used here."""
        self.on_oom: Callable[[Exhausted], None] | None = None
        """Told on the failing thread when a device runs out of memory."""
        self._boundaries = boundaries
        self._ooms: OomWatch | None = None
        self._keeper = MarkKeeper(boundaries)
        self._interner = interner
        self._torch = torch if torch is not None else sys.modules["torch"]
        self._pid = os.getpid()
        self._is_recording = False
        self._in_window = False
        self._ordinals: list[int] = []
        self._infos: dict[int, DeviceInfo] = {}
        self._peaks: dict[int, _Peaks] = {}
        self._until_look = 0
        self._begun: set[int] = set()
        self._drained: dict[int, int] = {}
        self._events_at_drain = 0
        self._end: dict[str, State] = {}
        self._notes: list[str] = []
        self._said: set[str] = set()
        self._backend = ""
        self._queued: Callable[[], None] | None = None

    # -- the source ----------------------------------------------------------------------------

    def open(self) -> None:
        """Get ready; if CUDA is not initialised yet, be told when it is."""
        if self._is_initialized():
            self._look()
            self._watch_ooms()
        else:
            self._queued = self._initialized
            self._torch.cuda._lazy_call(self._queued)

    def close(self) -> None:
        """Stop torch's recorder if it was started here; safe to call twice."""
        if self._ooms is not None:
            self._ooms.close()
        queued, self._queued = self._queued, None
        calls = getattr(self._torch.cuda, "_queued_calls", [])
        calls[:] = [entry for entry in calls if entry[0] is not queued]
        self._stop()

    def devices(self) -> Sequence[DeviceInfo]:
        """The devices that torch has memory on; none before CUDA is initialised."""
        self._look_now_and_then()
        return tuple(self._infos[i] for i in self._ordinals)

    def counters(self) -> Sequence[Counters]:
        """torch's own figures; reading them neither synchronizes nor resets anything."""
        self._keeper.mark()  # the next step begins
        self._look_now_and_then()
        return tuple(self._counters(i) for i in self._ordinals)

    def begin_window(self) -> Mapping[str, State]:
        """Start torch's recorder; called again in a window it adds devices that are new."""
        if not self._in_window:
            self._in_window = True
            self._begun, self._drained, self._end = set(), {}, {}
            self._events_at_drain = 0
        if not self._is_initialized():
            return {}
        already = self._is_recording
        self._start()
        if not self._is_recording:
            return {}
        return self._empty_states() if already else self._start_states()

    def pending_events(self) -> int:
        """From torch's counters of allocations and frees; a snapshot would take far too long."""
        if not self._is_recording:
            return 0
        return max(0, self._operations() - self._events_at_drain)

    def drain(self) -> Sequence[Chunk]:
        """The recorder's entries since the last drain, through a snapshot."""
        if not self._is_recording:
            return ()
        snapshot = self._torch.cuda.memory._snapshot()
        self._events_at_drain = self._operations()
        new = [self._new(i, events) for i, events in enumerate(snapshot["device_traces"])]
        traces = traces_from_snapshot({**snapshot, "device_traces": new})
        chunks = [self._chunk(trace) for trace in traces]
        return tuple(chunk for chunk in chunks if len(chunk.events))

    def end_window(self) -> Mapping[str, State]:
        """Stop the recorder; the states are those of the last drain, so they fit its events."""
        if self._is_recording and not self._end:
            self.drain()
        states, self._end = self._end, {}
        self._stop()
        self._in_window = False
        return states

    def notes(self) -> Sequence[str]:
        """What was not seen, since the last call."""
        notes, self._notes = self._notes, []
        return notes

    # -- devices -------------------------------------------------------------------------------

    def _is_initialized(self) -> bool:
        return os.getpid() == self._pid and bool(self._torch.cuda.is_initialized())

    def _initialized(self) -> None:
        """Run by torch right after it initialised CUDA, before anything was allocated."""
        try:
            if self._queued is None or os.getpid() != self._pid:
                return
            self._watch_ooms()
            if self._in_window:
                self._start()
        except Exception as error:  # noqa: BLE001 - torch would raise it into the job
            self._notes.append(f"recording could not start with CUDA: {error!r}")

    def _watch_ooms(self) -> None:
        if self._ooms is None and self.on_oom is not None:
            self._ooms = OomWatch(self._torch, self._boundaries, self.on_oom)
            why_not = self._ooms.open()
            if why_not:
                self._say(why_not)

    def _look_now_and_then(self) -> None:
        if self._until_look <= 0 and self._is_initialized():
            self._look()
        self._until_look -= 1

    def _look(self) -> None:
        cuda = self._torch.cuda
        held = [i for i in range(cuda.device_count()) if i in self._infos or _holds(cuda, i)]
        for i in held:
            if i not in self._infos:
                self._infos[i] = self._info(i)
        self._ordinals = held
        self._until_look = _LOOK_AGAIN if held else 1

    def _info(self, ordinal: int) -> DeviceInfo:
        cuda = self._torch.cuda
        properties = cuda.get_device_properties(ordinal)
        fraction = getattr(cuda, "get_per_process_memory_fraction", None)
        return DeviceInfo(
            device=f"cuda:{ordinal}",
            name=str(properties.name),
            total_bytes=int(properties.total_memory),
            uuid=str(getattr(properties, "uuid", "")),
            backend=self._allocator_backend(),
            memory_fraction=float(fraction(ordinal)) if fraction is not None else 1.0,
            settings=_settings_of(os.environ),
        )

    def _allocator_backend(self) -> str:
        if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING"):
            return "uncached"
        return str(self._torch.cuda.get_allocator_backend())

    def _counters(self, ordinal: int) -> Counters:
        stats = self._torch.cuda.memory_stats_as_nested_dict(ordinal)
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        now = _Peaks(allocated["peak"], reserved["peak"])
        before, self._peaks[ordinal] = self._peaks.get(ordinal, now), now
        return Counters(
            device=f"cuda:{ordinal}",
            allocated=allocated["current"],
            peak_allocated=_raised(allocated["peak"], before.allocated),
            reserved=reserved["current"],
            peak_reserved=_raised(reserved["peak"], before.reserved),
            active=_current(stats, "active_bytes"),
            requested=_current(stats, "requested_bytes"),
            inactive_split=_current(stats, "inactive_split_bytes"),
            retries=stats.get("num_alloc_retries", NOT_RECORDED),
            ooms=stats.get("num_ooms", NOT_RECORDED),
        )

    # -- the recorder --------------------------------------------------------------------------

    def _start(self) -> None:
        if self._is_recording or self._why_not():
            return
        memory = self._torch.cuda.memory
        options: dict[str, Any] = {"context": "alloc", "stacks": "python"}
        if "clear_history" in inspect.signature(memory._record_memory_history).parameters:
            options["clear_history"] = True
        memory._record_memory_history("all", max_entries=_MOST_EVENTS, **options)
        self._is_recording = True
        self._keeper.start()
        self._events_at_drain = self._operations()

    def _stop(self) -> None:
        self._keeper.stop()
        if self._is_recording and os.getpid() == self._pid:
            self._torch.cuda.memory._record_memory_history(None)
        self._is_recording = False

    def _why_not(self) -> bool:
        """Whether this torch cannot record, or somebody else does; said once."""
        self._backend = self._backend or self._allocator_backend()
        if self._backend != "native":
            self._say(
                f"torch's recorder does not work with the allocator {self._backend!r}: "
                "counters only, no single allocations"
            )
            return True
        if self._torch._C._cuda_isHistoryEnabled():
            self._say(
                "the program records memory history itself, which goes on undisturbed: "
                "counters only, no single allocations"
            )
            return True
        return False

    def _say(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            self._notes.append(message)

    def _empty_states(self) -> Mapping[str, State]:
        """Of devices that came into use while the recorder ran: they had held nothing."""
        self._look()
        new = [i for i in self._ordinals if i not in self._begun]
        self._begun.update(new)
        return {f"cuda:{i}": State() for i in new}

    def _start_states(self) -> Mapping[str, State]:
        """What the devices hold at the moment the recorder starts."""
        self._look()
        self._begun = set(self._ordinals)
        states = {f"cuda:{i}": State() for i in self._ordinals}
        for trace in traces_from_snapshot({"segments": segments_now(self._torch)}):
            if trace.device in states and trace.end is not None:
                states[trace.device] = Remapped(self._interner, trace.tables).state(trace.end)
        return states

    def _operations(self) -> int:
        """Events that torch's counters account for: one an allocation, two a free."""
        return sum(self._operations_of(i) for i in self._ordinals)

    def _operations_of(self, ordinal: int) -> int:
        count = self._torch.cuda.memory_stats_as_nested_dict(ordinal)["allocation"]["all"]
        return int(count["allocated"] + 2 * count["freed"])

    def _new(self, ordinal: int, events: list[Any]) -> list[Any]:
        """The entries that no drain has returned yet; none once the ring has wrapped."""
        if len(events) >= _MOST_EVENTS:
            self._say(
                f"torch's recorder overflowed on cuda:{ordinal}: more than {_MOST_EVENTS} events "
                "in one window; its last part is missing"
            )
            return []
        before, self._drained[ordinal] = self._drained.get(ordinal, 0), len(events)
        return events[before:]

    def _chunk(self, trace: Trace) -> Chunk:
        tables = Remapped(self._interner, trace.tables)
        events = tables.events(trace.events, self._keeper.marks)
        if trace.end is not None:
            self._end[trace.device] = tables.state(trace.end)
        return Chunk(trace.device, events)


def _raised(peak: int, before: int) -> int:
    """The peak if it was reached since the last look, else not known."""
    return peak if peak > before else NOT_RECORDED


def _current(stats: Mapping[str, Any], name: str) -> int:
    return int(stats[name]["all"]["current"]) if name in stats else NOT_RECORDED


def _holds(cuda: Any, ordinal: int) -> bool:
    return bool(cuda.memory_reserved(ordinal) > 0)


def _settings_of(environment: Mapping[str, str]) -> dict[str, object]:
    """The allocator's settings as the environment gives them, under torch's own key."""
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        if environment.get(name):
            return {"PYTORCH_CUDA_ALLOC_CONF": environment[name]}
    return {}
