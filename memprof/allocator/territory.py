"""To which pool, stream and size class the segments of a trace belong, where no event says so."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from memprof.allocator.pools import ArenaKey
from memprof.allocator.ranges import RangeSet
from memprof.allocator.rounding import SMALL_SEGMENT, SMALL_SIZE, round_size
from memprof.allocator.settings import AllocatorSettings
from memprof.trace import NOT_RECORDED, Action, SegmentKind, Segments, State, Trace

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

    def arena_at(self, start: int, end: int, stream: int) -> ArenaKey:
        """The arena of a range that was mapped at the start.

        What was mapped there later, what was allocated there, and the granularity of pages tell.
        """
        for address, key in self._known:
            if start <= address < end and key[1] == stream:
                return key
        small = self._holds_small(start, end)
        near = [(abs(a - start), key) for a, key in self._known if key[1:] == (stream, small)]
        return min(near)[1] if near and min(near)[0] < _FARTHEST else (0, stream, small)

    def _holds_small(self, start: int, end: int) -> bool:
        events = self._trace.events
        inside = (events.address >= start) & (events.address < end)
        inside &= np.isin(events.action, (Action.ALLOC, Action.FREE_COMPLETED))
        if inside.any():
            divisions = self._settings.roundup_divisions
            return round_size(int(events.size[inside][0]), divisions) <= SMALL_SIZE
        return (end - start) % self._settings.large_segment_size != 0

    def mapped_segments(self, ranges: RangeSet) -> Segments:
        """One row per contiguous mapped range."""
        spans = list(ranges)
        streams = [self._stream_at(start, end) for start, end in spans]
        keys = [
            self.arena_at(start, end, stream)
            for (start, end), stream in zip(spans, streams, strict=True)
        ]
        result: Segments = Segments.build(
            length=len(spans),
            address=[start for start, _ in spans],
            size=[end - start for start, end in spans],
            stream=streams,
            pool=[pool for pool, _, _ in keys],
            kind=[SegmentKind.SMALL if small else SegmentKind.LARGE for _, _, small in keys],
            expandable=[True] * len(spans),
        )
        return result

    def _stream_at(self, start: int, end: int) -> int:
        """The stream of a range mapped at the start: it is there still, or an event unmapped it."""
        segments, events = (self._trace.end or State()).segments, self._trace.events
        overlap = segments.expandable & (segments.address < end)
        overlap &= segments.address + segments.size > start
        if overlap.any():
            return int(segments.stream[overlap][0])
        unmaps = (events.action == Action.SEGMENT_UNMAP) & (events.address < end)
        unmaps &= events.address + events.size > start
        return int(events.stream[unmaps][0]) if unmaps.any() else 0

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
