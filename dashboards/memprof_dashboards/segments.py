"""The figure "map of the allocator": segments and blocks over addresses at one moment."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import numpy.typing as npt

from memprof.allocator.ranges import RangeSet
from memprof.trace import Action, Blocks, BlockState, Column, Events, Segments, State, Trace
from memprof.views.lifetimes import lifetimes
from memprof_dashboards.views import DeviceView, WindowView

__all__ = ["SegmentMap", "segment_maps", "segments_at"]

Ints = npt.NDArray[np.int64]

_BLOCKS = 12_000
"""Blocks that one map draws; beyond, the smallest are drawn joined with their neighbours."""
_PENDING = -1
_MIXED = -2


class SegmentMap(msgspec.Struct):
    """Columns of segments and of the blocks in use within them, both by address.

    A block's ``category`` is that of its bytes, -1 where it waits for a stream, -2 where it
    stands for several small ones (``count``). What no block covers is free.
    """

    event: int
    reserved: int
    segment_address: list[int]
    segment_size: list[int]
    segment_stream: list[int]
    segment_expandable: list[bool]
    block_address: list[int]
    block_size: list[int]
    block_requested: list[int]
    block_category: list[int]
    block_stack: list[int]
    block_count: list[int]


def segment_maps(view: DeviceView) -> dict[str, SegmentMap]:
    """``peak`` and ``end``: what lay where; empty where no segment is known."""
    maps = {name: _map(view, *moment) for name, moment in view.moments.items()}
    return {name: figure for name, figure in maps.items() if figure is not None}


def _map(view: DeviceView, window: WindowView, entry: int) -> SegmentMap | None:
    segments = segments_at(window.trace, entry - 1)
    if not len(segments):
        return None
    blocks = _concatenate(_in_use(window, entry), segments)
    return SegmentMap(
        event=window.first_event + entry,
        reserved=int(segments.size.sum()),
        segment_address=segments.address.tolist(),
        segment_size=segments.size.tolist(),
        segment_stream=segments.stream.tolist(),
        segment_expandable=segments.expandable.tolist(),
        block_address=blocks.address.tolist(),
        block_size=blocks.size.tolist(),
        block_requested=blocks.requested.tolist(),
        block_category=blocks.segment.tolist(),
        block_stack=view.book.numbers(blocks.stack),
        block_count=blocks.label.tolist(),
    )


# -- segments at a moment --------------------------------------------------------------------------


def segments_at(trace: Trace, event: int) -> Segments:
    """The segments just after ``event`` (-1: the start), by address, told by the events alone."""
    segments = _whole_segments(trace, event)
    pages = _mapped_ranges(trace, event)
    both = Segments.concatenate([segments, pages]) if len(pages) else segments
    in_order: Segments = both.take(np.argsort(both.address, kind="stable"))
    return in_order


def _whole_segments(trace: Trace, event: int) -> Segments:
    """Segments that come and go as one: lifetimes of the segments in place of those of blocks."""
    events = trace.events
    rows = np.flatnonzero(
        (events.action == Action.SEGMENT_ALLOC) | (events.action == Action.SEGMENT_FREE)
    )
    segment_events: Events = events.take(rows)
    is_alloc = segment_events.action == Action.SEGMENT_ALLOC
    action = np.where(is_alloc, Action.ALLOC, Action.FREE_REQUESTED).astype("u1")
    lives = lifetimes(
        replace(
            trace,
            events=replace(segment_events, action=action, block_size=segment_events.size),
            start=_as_blocks(trace.start),
            end=_as_blocks(trace.end),
            settings={},
        )
    )
    alive = lives.take(lives.alive_at(int(np.searchsorted(rows, event, side="right")) - 1))
    segments: Segments = Segments.build(
        len(alive), address=alive.address, size=alive.size, stream=alive.stream, stack=alive.stack
    )
    return segments


def _as_blocks(state: State | None) -> State | None:
    if state is None:
        return None
    segments = state.segments.take(~state.segments.expandable)
    blocks: Blocks = Blocks.build(
        len(segments),
        address=segments.address,
        size=segments.size,
        requested=segments.size,
        state=np.full(len(segments), BlockState.ACTIVE_ALLOCATED),
        segment=np.arange(len(segments)),
        stack=segments.stack,
    )
    return State(segments, blocks)


def _mapped_ranges(trace: Trace, event: int) -> Segments:
    """Ranges of expandable segments with memory behind them, from the nearer end of the trace."""
    events = trace.events
    is_page = (events.action == Action.SEGMENT_MAP) | (events.action == Action.SEGMENT_UNMAP)
    rows = np.flatnonzero(is_page)
    backwards = trace.end is not None
    state = (trace.end if backwards else trace.start) or State()
    segments = state.segments.take(state.segments.expandable)
    ranges = RangeSet()
    for address, size in zip(segments.address.tolist(), segments.size.tolist(), strict=True):
        ranges.add(address, size)
    rows = rows[rows > event][::-1] if backwards else rows[rows <= event]
    grows = (events.action[rows] == Action.SEGMENT_MAP) != backwards
    for grow, address, size in zip(
        grows.tolist(), events.address[rows].tolist(), events.size[rows].tolist(), strict=True
    ):
        (ranges.add if grow else ranges.remove)(address, size)
    spans = np.array(list(ranges), dtype=np.int64).reshape(-1, 2)
    result: Segments = Segments.build(
        len(spans),
        address=spans[:, 0],
        size=spans[:, 1] - spans[:, 0],
        stream=_streams(segments, spans[:, 0]),
        expandable=np.ones(len(spans), dtype=bool),
    )
    return result


def _streams(segments: Segments, addresses: Column) -> Column:
    """The stream of the nearest segment at or below each address."""
    if not len(segments):
        return np.zeros(len(addresses), dtype=np.int64)
    order = np.argsort(segments.address, kind="stable")
    row = np.searchsorted(segments.address[order], addresses, side="right") - 1
    return segments.stream[order][np.maximum(row, 0)]


# -- blocks in use ---------------------------------------------------------------------------------


def _in_use(window: WindowView, entry: int) -> Blocks:
    """Allocated and pending blocks; ``segment`` holds the category and ``label`` the count."""
    lives = window.line.lives
    alive = np.flatnonzero(lives.alive_at(entry - 1))
    used: Blocks = Blocks.build(
        len(alive),
        address=lives.address[alive],
        size=lives.size[alive],
        requested=lives.requested[alive],
        stack=lives.stack[alive],
        segment=window.owners.category.of[alive],
        label=np.ones(len(alive)),
    )
    both = Blocks.concatenate([used, _pending(window.trace, entry - 1)])
    result: Blocks = both.take(np.argsort(both.address, kind="stable"))
    return result


def _pending(trace: Trace, event: int) -> Blocks:
    """Blocks freed by their owner up to ``event`` whose free completes later, or never here."""
    events = trace.events
    frees = (events.action == Action.FREE_REQUESTED) | (events.action == Action.FREE_COMPLETED)
    rows = np.flatnonzero(frees)
    rows = rows[np.argsort(events.address[rows], kind="stable")]
    requested = events.action[rows] == Action.FREE_REQUESTED
    address = events.address[rows]
    paired = requested[:-1] & ~requested[1:] & (address[:-1] == address[1:])
    first, second = rows[:-1][paired], rows[1:][paired]
    waiting = first[(first <= event) & (event < second)]
    pending = _waiting(events.address[waiting], events.size[waiting], events.stack[waiting])
    if trace.end is None:
        return pending
    blocks = trace.end.blocks
    still = blocks.take(blocks.state == BlockState.ACTIVE_PENDING_FREE)
    since = np.flatnonzero(events.action == Action.FREE_REQUESTED)
    later = np.isin(still.address, events.address[since[since > event]])
    still = still.take(~later & ~np.isin(still.address, pending.address))
    pending_blocks: Blocks = Blocks.concatenate(
        [pending, _waiting(still.address, still.size, still.stack)]
    )
    return pending_blocks


def _waiting(address: Column, size: Column, stack: Column) -> Blocks:
    blocks: Blocks = Blocks.build(
        len(address),
        address=address,
        size=size,
        requested=size,
        stack=stack,
        segment=np.full(len(address), _PENDING),
        label=np.ones(len(address)),
    )
    return blocks


def _concatenate(blocks: Blocks, segments: Segments) -> Blocks:
    """At most about `_BLOCKS` rows: neighbours that are small are joined within their segment."""
    if len(blocks) <= _BLOCKS:
        return blocks
    least = np.partition(blocks.size, -_BLOCKS // 2)[-_BLOCKS // 2]
    small = blocks.size < least
    owner = np.searchsorted(segments.address, blocks.address, side="right")
    starts = np.ones(len(blocks), dtype=bool)
    starts[1:] = ~(small[1:] & small[:-1] & (owner[1:] == owner[:-1]))
    first = np.flatnonzero(starts)
    last = np.append(first[1:], len(blocks)) - 1
    count = np.add.reduceat(blocks.label, first)
    both: Blocks = Blocks.build(
        len(first),
        address=blocks.address[first],
        size=blocks.address[last] + blocks.size[last] - blocks.address[first],
        requested=np.add.reduceat(blocks.requested, first),
        stack=np.where(count > 1, 0, blocks.stack[first]),
        segment=np.where(count > 1, _MIXED, blocks.segment[first]),
        label=count,
    )
    return both
