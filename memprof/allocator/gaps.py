"""What lies between live blocks: free blocks, or remainders that the block before them owns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memprof.allocator.rounding import SMALL_SIZE
from memprof.allocator.settings import AllocatorSettings
from memprof.trace import (
    Action,
    Blocks,
    BlockState,
    Column,
    Columns,
    SegmentKind,
    Segments,
    State,
    Trace,
    column,
)

__all__ = ["BlocksAtStart", "apart", "is_tiled", "live_blocks_of", "tiled"]

_MOST = 1 << 60
"""Beyond every address and size: what is larger was not written by an allocator."""


@dataclass(frozen=True, slots=True, eq=False)
class BlocksAtStart(Columns):
    """Blocks in use at the start of a trace, by address."""

    address: Column = column("i8")
    size: Column = column("i8")
    requested: Column = column("i8")
    state: Column = column("u1")
    freed: Column = column("i8")
    """Event that completes the free; the number of events where none does."""
    exact: Column = column("?")
    """``size`` is the block's own, not only what was asked for, rounded."""
    stack: Column = column("i4")
    label: Column = column("i4")
    category: Column = column("u1")
    segment: Column = column("i4")

    def inside(self, segments: Segments) -> tuple[BlocksAtStart, int]:
        """The blocks that lie in a segment and in no other block; and how many do not.

        Where there are no segments at all (CPU tensors) every block stays, with row -1.
        """
        if not len(segments):
            self.segment[:] = -1
            return self, 0
        row = np.searchsorted(segments.address, self.address, side="right") - 1
        limit = (segments.address + segments.size)[np.maximum(row, 0)]
        fits = (row >= 0) & (self.address + self.size <= limit) & apart(self)
        self.segment[:] = row
        blocks: BlocksAtStart = self.take(fits)
        return blocks, int((~fits).sum())


def apart(rows: BlocksAtStart | Segments) -> npt.NDArray[np.bool_]:
    """Which rows (by address) have bytes, at an address, and begin behind those before them."""
    end = np.maximum.accumulate(rows.address + rows.size) if len(rows) else rows.address
    fits = (rows.size > 0) & (rows.address >= 0) & (rows.size < _MOST) & (rows.address < _MOST)
    fits[1:] &= rows.address[1:] >= end[:-1]
    result: npt.NDArray[np.bool_] = fits
    return result


def is_tiled(state: State) -> bool:
    """Whether the blocks fill every segment from its start to its end, in order of address."""
    segments, blocks = state.segments, state.blocks
    if not len(segments) or not len(blocks):
        return not len(segments)
    if not bool(apart(segments).all()) or int(blocks.segment.min()) < 0:
        return False
    begins = np.ones(len(blocks), dtype=bool)
    begins[1:] = blocks.segment[1:] != blocks.segment[:-1]
    ends = np.append(begins[1:], True)
    rows = blocks.segment[begins]
    end = blocks.address + blocks.size
    return bool(
        np.array_equal(rows, np.arange(len(segments)))
        and (blocks.size > 0).all()
        and np.array_equal(blocks.address[begins], segments.address)
        and np.array_equal(end[ends], segments.address + segments.size)
        and np.array_equal(blocks.address[~begins], end[:-1][~begins[1:]])
    )


def live_blocks_of(state: State, trace: Trace) -> BlocksAtStart:
    """The blocks in use in a recorded state; their sizes are their own."""
    used = state.blocks.take(state.blocks.state != BlockState.INACTIVE)
    used = used.take(np.argsort(used.address, kind="stable"))
    names = ("address", "size", "requested", "state", "stack", "label", "category")
    result: BlocksAtStart = BlocksAtStart.build(
        len(used),
        **{name: getattr(used, name) for name in names},
        freed=np.full(len(used), len(trace.events)),
        exact=np.ones(len(used), dtype=bool),
    )
    return result


def tiled(
    segments: Segments, live: BlocksAtStart, trace: Trace, settings: AllocatorSettings
) -> tuple[Blocks, npt.NDArray[np.bool_]]:
    """All blocks of ``segments``, live and free, by address; and which sizes are assumed.

    In the large pool of segments that cannot expand a free block is always over 1 MiB (a smaller
    remainder is not split off), so a smaller gap belongs to the block before it.
    """
    if not len(segments):
        return _blocks(live), np.zeros(len(live), dtype=bool)
    gap = _gaps(segments, live)
    remainders, assumptions = _remainders(segments, live, gap, trace, settings)
    live.size[:] += remainders
    free = _free_blocks(segments, live)
    blocks = Blocks.concatenate([_blocks(live), free])
    order = np.argsort(blocks.address, kind="stable")
    assumptions = np.concatenate((assumptions, np.zeros(len(free), dtype=bool)))
    result: Blocks = blocks.take(order)
    return result, assumptions[order]


def _blocks(live: BlocksAtStart) -> Blocks:
    columns = ("address", "size", "requested", "state", "segment", "stack", "label", "category")
    result: Blocks = Blocks.build(**{name: getattr(live, name) for name in columns})
    return result


def _gaps(segments: Segments, live: BlocksAtStart) -> npt.NDArray[np.int64]:
    """Bytes between the end of each live block and the next, or the end of its segment."""
    end = (segments.address + segments.size)[live.segment]
    limit = end.copy()
    if len(live) > 1:
        same = live.segment[1:] == live.segment[:-1]
        limit[:-1] = np.where(same, live.address[1:], end[:-1])
    result: npt.NDArray[np.int64] = limit - live.address - live.size
    return result


def _remainders(
    segments: Segments,
    live: BlocksAtStart,
    gap: npt.NDArray[np.int64],
    trace: Trace,
    settings: AllocatorSettings,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Bytes behind each block that are its own, and whether that was assumed."""
    kind = np.where(
        segments.kind == SegmentKind.UNKNOWN, segments.size > 2 * SMALL_SIZE, segments.kind - 1
    )
    coarse = (kind.astype(bool) & ~segments.expandable)[live.segment]
    open_ = coarse & ~live.exact & (gap > 0)
    oversize = open_ & (live.size >= settings.max_split_size)
    small = open_ & ~oversize & (gap <= SMALL_SIZE)
    remainders = np.where(oversize | small, gap, 0)
    in_question = open_ & ~oversize & ~small
    shown_ends = _shown_ends(live, gap, trace) - live.address - live.size
    confirmed = in_question & (shown_ends >= 0) & (shown_ends <= SMALL_SIZE)
    remainders[confirmed] = shown_ends[confirmed]
    return remainders, in_question & ~confirmed


def _shown_ends(
    live: BlocksAtStart, gap: npt.NDArray[np.int64], trace: Trace
) -> npt.NDArray[np.int64]:
    """Where the first allocation in the gap behind each block begins; -1 if the block died first.

    The gap is one free block while nothing was allocated in it, and allocations take the front of
    a free block: so this is where the block before it ends.
    """
    events = trace.events
    ends = np.full(len(live), -1, dtype=np.int64)
    rows = np.flatnonzero(events.action == Action.ALLOC)
    if not len(rows) or not len(live):
        return ends
    address = events.address[rows]
    before = np.searchsorted(live.address, address, side="right") - 1
    end = (live.address + live.size)[before]
    in_gap = (before >= 0) & (address >= end) & (address < end + gap[before])
    in_gap &= rows < live.freed[before]
    behind, first = np.unique(before[in_gap], return_index=True)
    ends[behind] = address[in_gap][first]
    return ends


def _free_blocks(segments: Segments, live: BlocksAtStart) -> Blocks:
    """The stretches of the segments that no live block covers."""
    starts = np.concatenate((segments.address, live.address + live.size))
    row = np.concatenate((np.arange(len(segments)), live.segment))
    order = np.lexsort((starts, row))
    starts, row = starts[order], row[order]
    ends = (segments.address + segments.size)[row]
    # Starts of a segment are its own and its blocks' ends; the block after the k-th start is the
    # k-th block of the segment.
    following = np.full(len(starts), -1, dtype=np.int64)
    index = np.arange(len(starts)) - row  # so many live blocks lie before this start
    has_next = index < len(live)
    has_next[has_next] &= live.segment[index[has_next]] == row[has_next]
    following[has_next] = live.address[index[has_next]]
    ends = np.where(has_next, following, ends)
    free = ends > starts
    result: Blocks = Blocks.build(
        address=starts[free],
        size=(ends - starts)[free],
        state=np.full(int(free.sum()), BlockState.INACTIVE),
        segment=row[free],
    )
    return result
