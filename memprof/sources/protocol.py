"""What the tracker asks of a source, and the tables that sources intern into; no source."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np

from memprof.records import DeviceInfo, TablesRecord
from memprof.trace import EMPTY, NOT_RECORDED, Column, Events, Frame, Label, Phase, State, Tables

__all__ = [
    "Chunk",
    "Counters",
    "EventSource",
    "Interner",
    "LateOwner",
    "Reading",
    "ReadingSource",
]

_PHASES = tuple(Phase)


class Counters(NamedTuple):
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


class LateOwner(NamedTuple):
    """Whose bytes an allocation is, as far as that became known after it was handed over."""

    category: int
    """A `Category`."""
    label: int
    """Row of the labels, with the module that owns it."""


class LastRead(NamedTuple):
    """What operators were given of a large tensor."""

    made: int
    """Index in the window of the event that made it."""
    read: int
    """The same of the first event after the last operator that was given it."""
    part: float
    """Of its bytes, that they read, added up; 1 for all and more."""


class Chunk(msgspec.Struct, frozen=True, eq=False):
    """The events of one device since the last drain, and owners that became known late.

    ``late_events`` and ``late_blocks`` map an event index of this window, or the address of a block
    of its start state, to an owner that differs from the one already handed over.
    """

    device: str
    events: Events
    late_events: Mapping[int, LateOwner] = msgspec.field(default_factory=dict)
    late_blocks: Mapping[int, LateOwner] = msgspec.field(default_factory=dict)
    last_reads: Sequence[LastRead] = ()
    """Of large tensors that have died."""


class Reading(NamedTuple):
    """One look at a device or the host; ``None`` where a value cannot be read."""

    device: str
    time_us: int
    values: Mapping[str, float | int | None]


class EventSource(Protocol):
    """Records allocations of one kind of device. All calls come from the job's own threads.

    A source that can lose events, or reads them by itself, has two more methods: ``is_over()``
    says whether the open window has a gap, so that another must take over, and ``take_spent_us()``
    what it took outside the calls here since it was last asked; where that covers what every event
    costs the job, its attribute ``is_timed`` is true. One that keeps events in memory until it is
    drained has an attribute ``on_full``, which it calls in the job's thread when many wait. Where
    events are written by code that may run no Python, it has an ``alarm`` instead, which they ring.
    One that knows when what lives was read last has ``living_reads()``, asked between a window's
    last `drain` and its `end_window`.
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

    Any thread of the job may call it. There is no lock: the program's own code (a ``__del__`` that
    the collector runs, a signal handler) may come in between anywhere and make a tensor, whose
    stack is then interned in the same thread. What must not be parted is one call into C.
    """

    def __init__(self) -> None:
        """Start with the empty stack, the empty label and the default pool."""
        self._frames: dict[tuple[str, str, int], int] = _numbering({})
        self._stacks: dict[tuple[int, ...], int] = _numbering({(): EMPTY})
        self._labels: dict[tuple[int, int, str, str], int]
        self._labels = _numbering({(NOT_RECORDED, 0, "", ""): EMPTY})
        self._pools: dict[tuple[int, int], int] = _numbering({(0, 0): EMPTY})
        self._labels_made: list[Label] = []
        """The labels as objects, as far as they were asked for."""
        self._modules: dict[str, int] = _numbering({"": EMPTY})
        self._numbers: Column = np.zeros((0, 3), np.int64)
        self._counts_written: tuple[int, int, int, int] = (0, 1, 1, 1)

    def __len__(self) -> int:
        """Rows of all tables so far, which is what they hold in memory."""
        return len(self._frames) + len(self._stacks) + len(self._labels) + len(self._pools)

    def frame(self, name: str, filename: str, line: int) -> int:
        """Row of a frame."""
        return self._frames[name, filename, line]

    @property
    def frame_rows(self) -> Mapping[tuple[str, str, int], int]:
        """Rows by name, file and line, in order; nothing is to be looked up that may be missing."""
        return self._frames

    def stack(self, frames: tuple[int, ...]) -> int:
        """Row of a stack of frame rows, innermost first."""
        return self._stacks[frames]

    def label(self, step: int, phase: Phase, module: str, annotation: str) -> int:
        """Row of a label."""
        return self._labels[step, int(phase), module, annotation]

    @property
    def label_rows(self) -> dict[tuple[int, int, str, str], int]:
        """Rows by step, phase, module and annotation; a new one is made by asking for it."""
        return self._labels

    def pool(self, pool: tuple[int, int]) -> int:
        """Row of a pool id."""
        return self._pools[pool]

    def tables(self) -> Tables:
        """All rows so far."""
        stacks = list(self._stacks)  # before the frames that they name
        frames, labels, pools = list(self._frames), list(self._labels), list(self._pools)
        return Tables(  # no tuple of a generator: see `tracked_objects`
            frames=(*[Frame(*f) for f in frames],),
            stacks=tuple(stacks),
            labels=(*[Label(s, Phase(p), m, a) for s, p, m, a in labels],),
            pools=tuple(pools),
        )

    def pools(self) -> list[tuple[int, int]]:
        """All pool ids."""
        return list(self._pools)

    def labels(self, first: int) -> list[Label]:
        """The labels from row ``first`` on."""
        at = len(self._labels_made)
        rows = _rows_from(self._labels, at)
        labels = [Label(step, _PHASES[phase], *names) for step, phase, *names in rows]
        self._labels_made[at : at + len(labels)] = (
            labels  # the same, where another thread did it meanwhile
        )
        return self._labels_made[first:]

    def label_numbers(self) -> Column:
        """The step, `NOT_RECORDED` where there is none, phase and module of every label so far.

        Modules are told as positions in `module_names`.
        """
        numbers_so_far, modules = self._numbers, self._modules
        rows = _rows_from(self._labels, len(numbers_so_far))
        if rows:  # column by column: a tuple for each would wake the garbage collector
            numbers = np.empty((len(rows), 3), np.int64)
            numbers[:, 0] = [max(step, NOT_RECORDED) for step, _, _, _ in rows]
            numbers[:, 1] = [max(phase, 0) for _, phase, _, _ in rows]
            numbers[:, 2] = [modules[module] for _, _, module, _ in rows]
            self._numbers = numbers_so_far = np.concatenate([numbers_so_far, numbers])
        return numbers_so_far

    def module_names(self) -> list[str]:
        """The modules of all labels that `label_numbers` has told of; the first is none."""
        return list(self._modules)

    def take_new(self) -> TablesRecord | None:
        """The rows added since the last call, or None."""
        first = self._counts_written
        stacks = _rows_from(self._stacks, first[1])  # before the frames that they name
        frames = _rows_from(self._frames, first[0])
        labels = _rows_from(self._labels, first[2])
        pools = _rows_from(self._pools, first[3])
        new = (len(frames), len(stacks), len(labels), len(pools))
        if not any(new):
            return None
        self._counts_written = (
            first[0] + new[0],
            first[1] + new[1],
            first[2] + new[2],
            first[3] + new[3],
        )
        return TablesRecord(first, frames, [list(s) for s in stacks], labels, pools)


def _rows_from(table: dict[Any, int], first: int) -> list[Any]:
    """The keys from a number on: from the end backwards, as a window's tables become long."""
    count = len(table)
    if count <= first:
        return []
    rows = list(islice(reversed(table), count - first))
    if len(table) != count:  # a row came in between, so that it began too late
        return list(islice(table, first, None))
    rows.reverse()
    return rows


class _LabelRowOf(defaultdict[Any, int]):
    """A dict that a weak reference may point at."""

    __slots__ = ("__weakref__",)


def _numbering(first: dict[Any, int]) -> dict[Any, int]:
    """A dict that gives a new key the next number, in one call into C: no code can come between.

    It does not hold itself, so that a recording's rows need no collection to be freed.
    """
    table = _LabelRowOf(None, first)
    table.default_factory = partial(len, weakref.proxy(table))
    return table
