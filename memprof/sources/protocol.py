"""What the tracker asks of a source, and the tables that sources intern into; no source."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

from memprof.records import DeviceInfo, TablesRecord
from memprof.trace import EMPTY, NOT_RECORDED, Events, Frame, Label, Phase, State, Tables

__all__ = ["Chunk", "Counters", "EventSource", "Interner", "Reading", "ReadingSource"]


@dataclass(frozen=True, slots=True)
class Counters:
    """One device's figures at a step's end, in bytes; `NOT_RECORDED` where it has none.

    Peaks are those since the previous call.
    """

    device: str
    allocated: int = NOT_RECORDED
    peak_allocated: int = NOT_RECORDED
    reserved: int = NOT_RECORDED
    peak_reserved: int = NOT_RECORDED
    active: int = NOT_RECORDED
    requested: int = NOT_RECORDED
    inactive_split: int = NOT_RECORDED
    retries: int = NOT_RECORDED
    ooms: int = NOT_RECORDED


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """The events of one device since the last drain, and categories that became known late.

    ``late_events`` and ``late_blocks`` map an event index of this window, or the address of a block
    of its start state, to a `Category` that differs from the one already handed over.
    """

    device: str
    events: Events
    late_events: Mapping[int, int] = field(default_factory=dict)
    late_blocks: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at a device or the host; ``None`` where a value cannot be read."""

    device: str
    time_us: int
    values: Mapping[str, float | int | None]


class EventSource(Protocol):
    """Records allocations of one kind of device. All calls come from the job's own threads.

    A source that can lose events, or reads them by itself, has two more methods: ``is_over()``
    says whether the open window has a gap, so that another must take over, and ``take_spent_us()``
    what it took outside the calls here since it was last asked.
    """

    name: str

    def devices(self) -> Sequence[DeviceInfo]:
        """The devices that it records now; may grow (CUDA is initialised later)."""

    def open(self) -> None:
        """Get ready; anything it raises closes the source with a note."""

    def close(self) -> None:
        """Undo `open`; leaves no hook, mode or callback. Safe to call twice."""

    def counters(self) -> Sequence[Counters]:
        """Figures at a step's end: cheap, no synchronization, no change to the user's peaks."""

    def begin_window(self) -> Mapping[str, State]:
        """Record every event from now on; the state per device, where it can be had cheaply."""

    def pending_events(self) -> int:
        """About how many events the next `drain` would return."""

    def drain(self) -> Sequence[Chunk]:
        """Events since the window began or the last drain."""

    def end_window(self) -> Mapping[str, State]:
        """Stop recording events (after a last `drain`); the state per device at this moment."""

    def notes(self) -> Sequence[str]:
        """What this source could not see, since the last call."""


class ReadingSource(Protocol):
    """Read now and then by the sampler thread."""

    name: str

    def open(self) -> None:
        """Get ready; anything it raises closes the source with a note."""

    def close(self) -> None:
        """Undo `open`. Safe to call twice."""

    def read(self) -> Sequence[Reading]:
        """One reading per device."""


class Interner:
    """Frames, stacks, labels and pools, each stored once; hands out what is new as a record.

    Any thread of the job may call it: a hit is one dict lookup, a miss takes the lock.
    """

    def __init__(self) -> None:
        """Start with the empty stack, the empty label and the default pool."""
        self._lock = threading.Lock()
        self._frames: dict[tuple[str, str, int], int] = {}
        self._stacks: dict[tuple[int, ...], int] = {(): EMPTY}
        self._labels: dict[tuple[int, int, str, str], int] = {(NOT_RECORDED, 0, "", ""): EMPTY}
        self._pools: dict[tuple[int, int], int] = {(0, 0): EMPTY}
        self._written = [0, 1, 1, 1]

    def frame(self, name: str, filename: str, line: int) -> int:
        """Row of a frame."""
        return self._row(self._frames, (name, filename, line))

    def stack(self, frames: tuple[int, ...]) -> int:
        """Row of a stack of frame rows, innermost first."""
        return self._row(self._stacks, frames)

    def label(self, step: int, phase: Phase, module: str, annotation: str) -> int:
        """Row of a label."""
        return self._row(self._labels, (step, int(phase), module, annotation))

    def pool(self, pool: tuple[int, int]) -> int:
        """Row of a pool id."""
        return self._row(self._pools, pool)

    def tables(self) -> Tables:
        """All rows so far."""
        with self._lock:
            return Tables(
                frames=tuple(Frame(*f) for f in self._frames),
                stacks=tuple(self._stacks),
                labels=tuple(Label(s, Phase(p), m, a) for s, p, m, a in self._labels),
                pools=tuple(self._pools),
            )

    def pools(self) -> list[tuple[int, int]]:
        """All pool ids."""
        with self._lock:
            return list(self._pools)

    def labels(self, first: int) -> list[Label]:
        """The labels from row ``first`` on."""
        with self._lock:
            rows = islice(self._labels, first, None)
            return [Label(step, Phase(phase), *names) for step, phase, *names in rows]

    def take_new(self) -> TablesRecord | None:
        """The rows added since the last call, or None."""
        with self._lock:
            frames, stacks, labels, pools = self._written
            record = TablesRecord(
                first=(frames, stacks, labels, pools),
                frames=list(islice(self._frames, frames, None)),
                stacks=[list(s) for s in islice(self._stacks, stacks, None)],
                labels=list(islice(self._labels, labels, None)),
                pools=list(islice(self._pools, pools, None)),
            )
            tables = (self._frames, self._stacks, self._labels, self._pools)
            new = [len(table) for table in tables]
            changed, self._written = new != self._written, new
        return record if changed else None

    def _row(self, table: dict[Any, int], key: Any) -> int:
        row = table.get(key)
        if row is not None:
            return row
        with self._lock:  # len() and the insertion must see the same table
            return table.setdefault(key, len(table))
