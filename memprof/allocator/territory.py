"""To which pool, stream and size class the segments of a trace belong, where no event says so."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from memprof.allocator.pools import ArenaKey
from memprof.allocator.ranges import RangeSet
from memprof.allocator.rounding import SMALL_SEGMENT, SMALL_SIZE, round_size
from memprof.allocator.settings import AllocatorSettings
from memprof.trace import NOT_RECORDED, Action, Events, SegmentKind, Segments, State, Trace

__all__ = ["Territory"]

_FARTHEST = 1 << 40
"""Bytes that one reservation of an expandable segment surely stays under."""


class Territory:
    """Owners of addresses: the segments at the end, and the events that mapped memory."""

    def __init__(self, trace: Trace, settings: AllocatorSettings) -> None:
        """Gather what the end state and the events say."""
        self._trace, self._settings = trace, settings
        self.pool_of_event: dict[int, int] = {}
        """Pool of each ``SEGMENT_ALLOC`` event that made a segment of the end state."""
        self._known = self._known_ranges()

    def note(self, row: int, at_end: int | None) -> None:
        """``SEGMENT_ALLOC`` event ``row`` made segment ``at_end`` of the end state."""
        end = self._trace.end
        if at_end is not None and end is not None:
            self.pool_of_event[row] = int(end.segments.pool[at_end])

    def kinds(self, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """Small or large, by the size of a whole segment: large ones have at least 10 MiB."""
        small = sizes <= SMALL_SEGMENT
        return np.where(small, SegmentKind.SMALL, SegmentKind.LARGE).astype("u1")

    def _known_ranges(self) -> list[tuple[int, ArenaKey]]:
        known: list[tuple[int, ArenaKey]] = []
        segments = (self._trace.end or State()).segments
        for row in np.flatnonzero(segments.expandable).tolist():
            small = int(segments.kind[row]) == SegmentKind.SMALL
            key = (int(segments.pool[row]), int(segments.stream[row]), small)
            known.append((int(segments.address[row]), key))
        by_stream = {(key[1], key[2]): key[0] for _, key in known}
        events = self._trace.events
        for row in np.flatnonzero(events.action == Action.SEGMENT_MAP).tolist():
            # One request to the small pool maps one page, one to the large pool larger pages.
            stream, small = int(events.stream[row]), int(events.size[row]) == SMALL_SEGMENT
            pool = int(events.pool[row])
            if pool == NOT_RECORDED:
                pool = by_stream.get((stream, small), 0)
            known.append((int(events.address[row]), (pool, stream, small)))
        return sorted(known)

    def arena_at(self, start: int, end: int) -> ArenaKey:
        """The arena of an expandable range that was mapped at the start.

        It is there at the end still, or was unmapped; the events inside it tell the rest.
        """
        segments, events = (self._trace.end or State()).segments, self._trace.events
        there = segments.expandable & (segments.address < end)
        there &= segments.address + segments.size > start
        if there.any():
            row = int(np.flatnonzero(there)[0])
            small = int(segments.kind[row]) == SegmentKind.SMALL
            return int(segments.pool[row]), int(segments.stream[row]), small
        inside = events.take((events.address >= start) & (events.address < end))
        stream = int(inside.stream[0]) if len(inside) else 0
        small = self._is_small(inside, end - start)
        told = inside.pool[inside.pool != NOT_RECORDED]
        if len(told):
            return int(told[0]), stream, small
        near = [(abs(a - start), key) for a, key in self._known if key[1:] == (stream, small)]
        return min(near)[1] if near and min(near)[0] < _FARTHEST else (0, stream, small)

    def _is_small(self, inside: Events, size: int) -> bool:
        blocks = np.isin(inside.action, (Action.ALLOC, Action.FREE_COMPLETED))
        if blocks.any():
            requested = int(inside.size[blocks][0])
            return round_size(requested, self._settings.roundup_divisions) <= SMALL_SIZE
        return size % self._settings.large_segment_size != 0

    def mapped_segments(self, ranges: RangeSet) -> Segments:
        """One row per contiguous mapped range."""
        spans = list(ranges)
        keys = [self.arena_at(start, end) for start, end in spans]
        result: Segments = Segments.build(
            length=len(spans),
            address=[start for start, _ in spans],
            size=[end - start for start, end in spans],
            stream=[stream for _, stream, _ in keys],
            pool=[pool for pool, _, _ in keys],
            kind=[SegmentKind.SMALL if small else SegmentKind.LARGE for _, _, small in keys],
            expandable=[True] * len(spans),
        )
        return result

    def first_pages(self, start: Segments) -> dict[ArenaKey, int]:
        """The lowest address that the arena of each expandable segment is mapped at, ever.

        Below the lowest range at the start lie pages that were unmapped before it and may be
        mapped again.
        """
        lowest: dict[ArenaKey, int] = {}
        for row in np.flatnonzero(start.expandable).tolist():
            small = int(start.kind[row]) == SegmentKind.SMALL
            key = (int(start.pool[row]), int(start.stream[row]), small)
            address = int(start.address[row])
            lowest[key] = min(address, lowest.get(key, address))
        for address, key in self._known:
            if key in lowest and lowest[key] - _FARTHEST < address < lowest[key]:
                lowest[key] = address
        return lowest
