"""One bounded pass over the objects that the cyclic collector tracks; names nothing.

The pass is a breadth-first search forwards from roots, because asking the collector for the
referrers of something costs a pass over the whole heap for every level. What is known of an object
is one byte in a table addressed by the object's own address, so two million objects need tens of
megabytes, and the work on references is done on whole arrays.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from memprof.cpython.object_addresses import addresses

__all__ = [
    "CHUNK",
    "LATE",
    "OMITTED",
    "SPECIAL",
    "TARGET",
    "VISITED",
    "Deadline",
    "Heap",
    "Level",
    "places_among",
]

TRACKED, VISITED, TARGET, SPECIAL, LATE, OMITTED = 1, 2, 4, 8, 16, 32
"""Marks of an object.

``SPECIAL`` ones (tensors, graph nodes) have references the collector cannot see; ``LATE`` ones are
entered when nothing else is left, because what they hold has a better name elsewhere. ``OMITTED``
ones are tuples that were not listed (`tracked_objects`) and that only a reference leads to.
"""

CHUNK = 1024
"""Objects expanded at once: large enough for array work, small enough to look at one by one."""

_PATIENCE = 4
"""Times its budget that a search may take by the clock, on a machine that is busy otherwise."""

_MOST_SLOWNESS = 2.0
"""How much slower than the machine for which budgets are meant another one is taken to be."""

_BLOCK = 1 << 16
_PAGE_BITS, _SLOT_BITS = 20, 16  # a megabyte of addresses holds 2**16 slots of 16 bytes
_SLOTS = (1 << _SLOT_BITS) - 1
_MAX_PAGES = 2048  # a table of 128 MiB: the search stays below 200 MB

Ints = NDArray[np.int64]


class Deadline:
    """When the search must stop; ``passed`` stays true once it was, but after a block of `earlier`.

    It counts the time that this thread computes: on a busy machine the clock runs on while the
    search waits for a processor, as the job does. There is an end by the clock all the same.
    """

    def __init__(self, budget_s: float, *, is_fixed: bool = False) -> None:
        self.budget_s = budget_s
        """Of the whole search, in seconds."""
        self.is_fixed = is_fixed
        """Whether it stays where it is on a slow machine, too."""
        self._end = time.thread_time() + budget_s
        self._latest = time.monotonic() + _PATIENCE * budget_s
        self._slowness = 1.0
        self.passed = False
        self.names_followed = False
        """Whether the program's variables and the running functions were followed to the end before
        it passed: what no name of theirs leads to, more time would hardly explain."""

    def check(self) -> bool:
        """True when the time is over."""
        if not self.passed:
            self.passed = time.thread_time() > self._end or time.monotonic() > self._latest
        return self.passed

    def allow_for(self, slowness: float) -> None:
        """Count ``budget_s`` in seconds of a machine that is so many times as fast, twice at most.

        A search that is cut off shortly before its end has held the job up for nothing.
        """
        slowness = min(slowness, _MOST_SLOWNESS)
        if slowness > self._slowness and not self.is_fixed:
            extra_s = (slowness - self._slowness) * self.budget_s
            self._end += extra_s
            self._latest += _PATIENCE * extra_s
            self._slowness = slowness

    @property
    def remaining_s(self) -> float:
        """Seconds until then; less than none where it was."""
        return self._end - time.thread_time()

    @contextmanager
    def earlier(self, share: float) -> Iterator[None]:
        """Have it come earlier in the block, by this share of the whole budget."""
        kept_s = share * self.budget_s
        had_passed = self.passed
        self._end -= kept_s
        self._latest -= _PATIENCE * kept_s
        try:
            yield
        finally:
            self._end += kept_s
            self._latest += _PATIENCE * kept_s
            self.passed = had_passed
            self.check()

    def later(self, share: float) -> Deadline:
        """A deadline that comes after this one, by this share of the whole budget."""
        return Deadline(max(0.0, self.remaining_s + share * self.budget_s))


@dataclass(frozen=True)
class Level:
    """Objects found in one sweep, and the chunk of ``source`` that refers to each (-1: none)."""

    objects: list[object]
    source: int
    chunk_of: NDArray[np.int32]


@dataclass(frozen=True)
class Sweep:
    """What following the references of one level came to."""

    level: int
    """The index of the level that it made."""
    hits: list[int]
    """The chunks of the source that refer to a target."""
    rest: int | None
    """The first chunk of the source for which there was no time."""


@dataclass
class Heap:
    """The tracked objects at one moment (held until the search ends), with their marks."""

    objects: list[object]
    omitted_ids: list[int]
    """Of tuples that are left out of ``objects``, the addresses."""
    deadline: Deadline
    levels: list[Level] = field(default_factory=list)
    complete: bool = True

    def __post_init__(self) -> None:
        ids = addresses(self.objects)
        omitted_ids = np.array(self.omitted_ids, np.int64)
        pages = np.concatenate([ids, omitted_ids]) >> _PAGE_BITS
        changes = np.flatnonzero(
            np.diff(pages, append=-1)
        )  # neighbours share a page: fewer to sort
        pages = np.unique(pages[changes])
        if len(pages) > _MAX_PAGES:  # the fullest pages first would need counts; the lowest do
            pages, self.complete = pages[:_MAX_PAGES], False
        self._pages = pages
        self._row_by_bits = np.zeros(1 << _SLOT_BITS, np.intp)
        self._row_by_bits[pages & _SLOTS] = np.arange(len(pages))
        # two regions of memory may have pages with the same last bits
        self._are_told_by_bits = len(np.unique(pages & _SLOTS)) == len(pages)
        self._row_of = {page: row for row, page in enumerate(pages.tolist())}
        self._marks = np.zeros((len(pages) << _SLOT_BITS) + 1, np.uint8)
        self._marks[self._places(ids)] = TRACKED
        self._marks[self._places(omitted_ids)] = TRACKED | OMITTED
        self._marks[-1] = 0

    def _places(self, ids: Ints) -> Ints:
        pages = ids >> _PAGE_BITS
        if self._are_told_by_bits:
            row = self._row_by_bits[pages & _SLOTS]
        else:
            row = np.searchsorted(self._pages, pages)
            np.minimum(row, len(self._pages) - 1, out=row)
        places: Ints = (row << _SLOT_BITS) | ((ids >> 4) & _SLOTS)
        places[self._pages[row] != pages] = len(self._marks) - 1
        return places

    def _place(self, one: object) -> int:
        """The same for a single object, for which arrays would be slow."""
        at = id(one)
        row = self._row_of.get(at >> _PAGE_BITS)
        if row is None:
            return len(self._marks) - 1
        return row << _SLOT_BITS | at >> 4 & _SLOTS

    def mark(self, objects: Iterable[object], bits: int) -> None:
        """Add ``bits`` to the marks of ``objects``; untracked ones are left out."""
        places = self._places(addresses(list(objects)))
        self._marks[places] |= np.uint8(bits)
        self._marks[-1] = 0

    def clear(self, objects: Iterable[object], bits: int) -> None:
        """Take ``bits`` out of the marks of ``objects``."""
        self._marks[self._places(addresses(list(objects)))] &= ~np.uint8(bits)

    def forget(self, objects: Iterable[object]) -> None:
        """Leave ``objects`` out of the search: they are neither entered nor reported."""
        self._marks[self._places(addresses(list(objects)))] = 0

    def marks(self, objects: list[object]) -> NDArray[np.uint8]:
        """The marks of ``objects``, 0 for what is not tracked."""
        return self._marks[self._places(addresses(objects))]

    def is_tracked(self, one: object) -> bool:
        """Whether ``one`` was there when the search began."""
        return bool(self._marks[self._place(one)] & TRACKED)

    def visit(self, one: object) -> bool:
        """Mark ``one`` as visited; true when it is tracked and was not visited before."""
        place = self._place(one)
        before = self._marks[place]
        self._marks[place] |= VISITED if before else 0
        return bool(before & TRACKED and not before & VISITED)

    def unvisited(self) -> list[object]:
        """The tracked objects that no root leads to."""
        unvisited = [self.objects[at] for at in self.unvisited_among(self.objects).tolist()]
        at = 0
        while self.omitted_ids and at < len(unvisited) and not self.deadline.check():
            unvisited += self._omitted_below(unvisited[at : at + CHUNK])
            at += CHUNK
        return unvisited

    def _omitted_below(self, chunk: list[object]) -> list[object]:
        """The unvisited omitted objects to which these refer: listed from now on."""
        referents = gc.get_referents(*chunk)
        places = self._places(addresses(referents))
        omitted = np.flatnonzero((self._marks[places] & (OMITTED | VISITED)) == OMITTED)
        places, first = np.unique(places[omitted], return_index=True)
        self._marks[places] &= ~np.uint8(OMITTED)
        below = [referents[row] for row in omitted[np.sort(first)].tolist()]
        self.objects += below
        return below

    def unvisited_among(self, objects: list[object]) -> Ints:
        """The rows of those ``objects`` that are tracked and that no root leads to."""
        return np.flatnonzero((self.marks(objects) & (TRACKED | VISITED)) == TRACKED)

    def start(self, objects: list[object]) -> int:
        """Begin a sweep at ``objects``, which nothing refers to; its level's index."""
        self.levels.append(Level(objects, -1, np.full(len(objects), -1, np.int32)))
        return len(self.levels) - 1

    def sweep(self, source: int, first: int = 0) -> Sweep:
        """Follow the references of level ``source``, from chunk ``first`` on, in time."""
        objects = self.levels[source].objects
        referents: list[object] = []
        chunk_of: list[int] = []
        hits: list[int] = []
        rest = None
        for number in range(first, -(-len(objects) // CHUNK)):
            if self.deadline.check():
                rest = number
                break
            fresh, hit = self._expand(self.chunk(source, number))
            referents += fresh
            chunk_of += [number] * len(fresh)
            if hit:
                hits.append(number)
        self.levels.append(Level(referents, source, np.array(chunk_of, np.int32)))
        return Sweep(len(self.levels) - 1, hits, rest)

    def take_late(self, level: int) -> Level | None:
        """Take the ``LATE`` objects out of a level, as a level of their own to be added later."""
        record = self.levels[level]
        late = (self.marks(record.objects) & LATE) != 0
        if not late.any():
            return None
        parts = []
        for mask in (~late, late):
            places = np.flatnonzero(mask)
            objects = [record.objects[at] for at in places.tolist()]
            parts.append(Level(objects, record.source, record.chunk_of[places]))
        self.levels[level] = parts[0]
        return parts[1]

    def chunk(self, level: int, number: int) -> list[object]:
        """The objects of one chunk of a level."""
        return self.levels[level].objects[number * CHUNK : (number + 1) * CHUNK]

    def _expand(self, chunk: list[object]) -> tuple[list[object], bool]:
        referents = gc.get_referents(*chunk)
        fresh: list[object] = []
        hit = False
        ids = addresses(referents)
        for at in range(0, len(referents), _BLOCK):
            places = self._places(ids[at : at + _BLOCK])
            marks = self._marks[places]
            hit = hit or bool((marks & TARGET).any())
            new = np.flatnonzero((marks & (TRACKED | VISITED)) == TRACKED)
            if len(new):
                _, first = np.unique(places[new], return_index=True)
                new = new[np.sort(first)]
                self._marks[places[new]] |= VISITED
                fresh += [referents[i] for i in (new + at).tolist()]
        return fresh, hit


def places_among(ids: Ints, targets: list[int]) -> list[int]:
    """Where in ``ids`` one of ``targets`` stands, which are few and in order."""
    few = np.array([*targets, np.iinfo(np.int64).max])
    may_be = np.zeros(1 << _SLOT_BITS, np.bool_)
    may_be[few >> 4 & _SLOTS] = True
    likely = np.flatnonzero(may_be[ids >> 4 & _SLOTS])  # most are ruled out by a look
    ids = ids[likely]
    places: list[int] = likely[few[np.searchsorted(few, ids)] == ids].tolist()
    return places
