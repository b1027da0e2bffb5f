"""The pool, stream and size class of each segment of a trace, where no event says so."""

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
        self._maps: list[tuple[int, ArenaKey]] = []
        self._ranges = self._known_ranges()

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
        ranges: list[tuple[int, ArenaKey]] = []
        segments = (self._trace.end or State()).segments
        for row in np.flatnonzero(segments.expandable).tolist():
            small = int(segments.kind[row]) == SegmentKind.SMALL
            key = (int(segments.pool[row]), int(segments.stream[row]), small)
            ranges.append((int(segments.address[row]), key))
        by_stream = {(key[1], key[2]): key[0] for _, key in ranges}
        events = self._trace.events
        for row in np.flatnonzero(events.action == Action.SEGMENT_MAP).tolist():
            # One request to the small pool maps one page, one to the large pool larger pages.
            stream, small = int(events.stream[row]), int(events.size[row]) == SMALL_SEGMENT
            pool = int(events.pool[row])
            if pool == NOT_RECORDED:
                pool = by_stream.get((stream, small), 0)
            ranges.append((int(events.address[row]), (pool, stream, small)))
            self._maps.append((row, (pool, stream, small)))
        return sorted(ranges)

    def arena_at(self, start: int, end: int) -> ArenaKey:
        """The arena of an expandable range that was mapped at the start.

        What happened inside it until it was first unmapped tells, or else the end state: after
        that the addresses may have been reserved anew, for another pool.
        """
        events = self._trace.events
        rows = np.flatnonzero((events.address >= start) & (events.address < end))
        unmapped = self._unmaps(start, end)
        if not len(unmapped):
            at_end = self._at_end(start, end)
            if at_end is not None:
                return at_end
        first = int(unmapped[0]) if len(unmapped) else len(events)
        inside = events.take(rows[rows <= first] if (rows <= first).any() else unmapped[:1])
        stream = int(inside.stream[0]) if len(inside) else 0
        small = self._is_small(inside, end - start)
        pools = inside.pool[inside.pool != NOT_RECORDED]
        if len(pools):
            return int(pools[0]), stream, small
        near = [(abs(a - start), key) for a, key in self._ranges if key[1:] == (stream, small)]
        return min(near)[1] if near and min(near)[0] < _FARTHEST else (0, stream, small)

    def _unmaps(self, start: int, end: int) -> npt.NDArray[np.intp]:
        """Events that unmapped something of a range."""
        events = self._trace.events
        overlap = (events.address < end) & (events.address + events.size > start)
        return np.flatnonzero(overlap & (events.action == Action.SEGMENT_UNMAP))

    def _at_end(self, start: int, end: int) -> ArenaKey | None:
        segments = (self._trace.end or State()).segments
        there = segments.expandable & (segments.address < end)
        there &= segments.address + segments.size > start
        if not there.any():
            return None
        row = int(np.flatnonzero(there)[0])
        small = int(segments.kind[row]) == SegmentKind.SMALL
        return int(segments.pool[row]), int(segments.stream[row]), small

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
        """The lowest address that each arena's expandable segment of the start is mapped at, ever.

        Below the lowest range at the start lie pages that were unmapped before it and may be
        mapped again, as long as anything of the segment stays mapped.
        """
        lowest: dict[ArenaKey, int] = {}
        until: dict[ArenaKey, int] = {}
        for row in np.flatnonzero(start.expandable).tolist():
            small = int(start.kind[row]) == SegmentKind.SMALL
            key = (int(start.pool[row]), int(start.stream[row]), small)
            address, size = int(start.address[row]), int(start.size[row])
            lowest[key] = min(address, lowest.get(key, address))
            until[key] = max(self._mapped_until(address, size), until.get(key, 0))
        for row, key in self._maps:
            address = int(self._trace.events.address[row])
            if key in lowest and row < until[key] and lowest[key] - _FARTHEST < address:
                lowest[key] = min(lowest[key], address)
        return lowest

    def _mapped_until(self, address: int, size: int) -> int:
        """The event that unmapped the last of a range; the number of events if none did."""
        events = self._trace.events
        rows = self._unmaps(address, address + size)
        low = np.maximum(events.address[rows], address)
        high = np.minimum(events.address[rows] + events.size[rows], address + size)
        enough = np.flatnonzero(np.cumsum(high - low) >= size)
        return int(rows[enough[0]]) if len(enough) else len(events)
