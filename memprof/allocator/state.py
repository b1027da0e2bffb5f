"""Between the live model and the frozen record: a `State` of what an allocator holds, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from memprof.allocator.expandable import note_unmapped
from memprof.allocator.model import CachingAllocator
from memprof.allocator.pools import FREE, UNMAPPED, Arena, ArenaKey, Block, Extent
from memprof.trace import Blocks, BlockState, Events, SegmentKind, Segments, State

__all__ = ["TIE_SPACING", "Origins", "restore", "start_owner", "state_of"]

TIE_SPACING = 1 << 20
"""Between the tie-breaks of segments in the order that is assumed for them at the start."""

_VIEW = 1 << 40
"""Addresses taken for reserved behind a restored expandable segment: no card fills them."""


def start_owner(row: int) -> int:
    """The owner number of row ``row`` of the start state; events own with their index."""
    return -2 - row


@dataclass(frozen=True, slots=True)
class Origins:
    """What owner numbers point into: the events of a trace, and the state before them."""

    events: Events = field(default_factory=Events.build)
    start: State = field(default_factory=State)

    def of_blocks(self, owners: npt.NDArray[np.int64], name: str) -> npt.NDArray[Any]:
        """One column (stack, label, category) for each owner; 0 where the owner is unknown."""
        return _pick(owners, getattr(self.events, name), getattr(self.start.blocks, name))

    def of_segments(self, owners: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """The stack that obtained each segment."""
        return _pick(owners, self.events.stack, self.start.segments.stack)


def _pick(
    owners: npt.NDArray[np.int64], by_event: npt.NDArray[Any], by_row: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    values = np.zeros(len(owners), dtype=by_event.dtype)
    of_event, of_row = owners >= 0, owners <= -2
    values[of_event] = by_event[owners[of_event]]
    values[of_row] = by_row[-2 - owners[of_row]]
    return values


def state_of(allocator: CachingAllocator, origins: Origins | None = None) -> State:
    """What the allocator holds now, segments and blocks by address.

    ``origins`` gives stacks, labels and categories to the owners; without it they are 0.
    """
    origins = origins or Origins()
    blocks = _blocks_by_address(allocator)
    heads = [b for b in blocks if b.prev is None or b.prev.state == UNMAPPED]
    starts = np.array([b.prev is None or b.prev.state == UNMAPPED for b in blocks], dtype=bool)
    rows = np.cumsum(starts) - 1
    sizes = np.array([b.size for b in blocks], dtype=np.int64)
    segment_sizes = np.zeros(len(heads), dtype=np.int64)
    np.add.at(segment_sizes, rows, sizes)
    return State(
        segments=_segments(allocator, heads, segment_sizes, origins),
        blocks=_block_columns(blocks, rows, origins),
    )


def _blocks_by_address(allocator: CachingAllocator) -> list[Block]:
    blocks = list(allocator.live.values())
    for arena in allocator.arenas():
        blocks += arena.blocks
    blocks.sort(key=lambda block: block.address)
    return blocks


def _segments(
    allocator: CachingAllocator, heads: list[Block], sizes: npt.NDArray[np.int64], origins: Origins
) -> Segments:
    owners = [_segment_owner(allocator, head) for head in heads]
    kinds = [SegmentKind.SMALL if b.arena.small else SegmentKind.LARGE for b in heads]
    result: Segments = Segments.build(
        length=len(heads),
        address=[b.address for b in heads],
        size=sizes,
        stream=[b.arena.stream for b in heads],
        pool=[b.arena.pool for b in heads],
        kind=[int(kind) for kind in kinds],
        expandable=[b.extent is not None for b in heads],
        stack=origins.of_segments(np.array(owners, dtype=np.int64)),
    )
    return result


def _segment_owner(allocator: CachingAllocator, head: Block) -> int:
    if head.extent is not None:
        return head.extent.owner
    # Missing only where a recording that contradicts itself names one segment twice.
    segment = allocator.segments.get(head.address)
    return -1 if segment is None else segment[2]


def _block_columns(blocks: list[Block], rows: npt.NDArray[np.intp], origins: Origins) -> Blocks:
    active = [b.state != FREE for b in blocks]
    owners = np.where(active, np.array([b.owner for b in blocks], dtype=np.int64), -1)
    result: Blocks = Blocks.build(
        length=len(blocks),
        address=[b.address for b in blocks],
        size=[b.size for b in blocks],
        requested=[b.requested for b in blocks],
        state=[b.state for b in blocks],
        segment=rows,
        stack=origins.of_blocks(owners, "stack"),
        label=origins.of_blocks(owners, "label"),
        category=origins.of_blocks(owners, "category"),
    )
    return result


def restore(
    allocator: CachingAllocator,
    state: State,
    first_pages: Mapping[ArenaKey, int] | None = None,
    ties: Mapping[int, int] | None = None,
) -> None:
    """Fill an empty allocator with a recorded state, addresses and all.

    Args:
        allocator: an empty one.
        state: segments, and blocks that tile them.
        first_pages: the lowest address that the expandable segment of an arena is known to reach
            down to, where that is below what is mapped.
        ties: the tie-break of segments, by address. A state does not say when its segments were
            obtained; those left out count as obtained in the order of their addresses.
    """
    segments = state.segments
    rows = _BlockRows(state)
    extents: dict[ArenaKey, list[Block]] = {}
    extent_ties: dict[ArenaKey, int] = {}
    for row in np.argsort(segments.address, kind="stable").tolist():
        arena = allocator.arena(*_arena_key(segments, row))
        key = (arena.pool, arena.stream, arena.small)
        if segments.expandable[row]:
            tie = extent_ties.setdefault(key, _start_tie(allocator, segments, row, ties))
            extents.setdefault(key, []).extend(rows.chain(allocator, arena, row, tie))
        else:
            chain = rows.chain(allocator, arena, row, _start_tie(allocator, segments, row, ties))
            segment = (int(segments.size[row]), arena, start_owner(row))
            allocator.segments[chain[0].address] = segment
        allocator.driver.occupy(int(segments.address[row]), int(segments.size[row]))
        allocator.grow(int(segments.size[row]))
    for key, chain in extents.items():
        lowest = (first_pages or {}).get(key, chain[0].address)
        _join(chain, min(lowest, chain[0].address))
    allocator.peak_allocated, allocator.peak_reserved = allocator.allocated, allocator.reserved
    allocator.apply(allocator.settings)  # look again whether anything is expandable


def _start_tie(
    allocator: CachingAllocator, segments: Segments, row: int, ties: Mapping[int, int] | None
) -> int:
    allocator.counter += TIE_SPACING  # room to move segments in between, once their order shows
    return (ties or {}).get(int(segments.address[row]), allocator.next_tie())


def _arena_key(segments: Segments, row: int) -> ArenaKey:
    pool, stream = max(int(segments.pool[row]), 0), int(segments.stream[row])
    return pool, stream, _is_small(segments, row)


def _is_small(segments: Segments, row: int) -> bool:
    kind = int(segments.kind[row])
    if kind == SegmentKind.UNKNOWN:
        return int(segments.size[row]) <= 2 << 20
    return kind == SegmentKind.SMALL


class _BlockRows:
    """The rows of a state's blocks as plain integers, turned into linked blocks by segment."""

    def __init__(self, state: State) -> None:
        blocks = state.blocks
        self.address = blocks.address.tolist()
        self.size = blocks.size.tolist()
        self.requested = blocks.requested.tolist()
        self.state = blocks.state.tolist()
        self.of_segment: list[list[int]] = [[] for _ in range(len(state.segments))]
        for row, segment in enumerate(blocks.segment.tolist()):
            if segment >= 0:  # a block in no segment cannot be placed
                self.of_segment[segment].append(row)

    def chain(
        self, allocator: CachingAllocator, arena: Arena, segment: int, tie: int
    ) -> list[Block]:
        chain: list[Block] = []
        for row in self.of_segment[segment]:
            block = Block(arena, self.address[row], self.size[row], tie)
            if allocator.counts_blocks:
                allocator.counter += TIE_SPACING
                block.tie = allocator.next_tie()
            if chain:
                block.prev, chain[-1].next = chain[-1], block
            chain.append(block)
            self._enter(allocator, block, row)
        return chain

    def _enter(self, allocator: CachingAllocator, block: Block, row: int) -> None:
        block.state = self.state[row]
        if block.state == FREE:
            block.arena.insert(block)
            return
        block.requested = self.requested[row]
        block.owner = start_owner(row)
        allocator.live[block.address] = block
        if block.state == BlockState.ACTIVE_ALLOCATED:
            allocator.allocated += block.size
        else:
            allocator.pending += block.size


def _join(chain: list[Block], first: int) -> None:
    """Link the mapped ranges of one expandable segment, with unmapped blocks in between."""
    arena, tie = chain[0].arena, chain[0].tie
    extent = Extent(first, _VIEW, arena.page, -1)
    linked: list[Block] = []
    end = first
    for block in chain:
        if block.address > end:
            linked.append(Block(arena, end, block.address - end, tie))
            note_unmapped(linked[-1])
        linked.append(block)
        end = block.address + block.size
    linked.append(Block(arena, end, first + _VIEW - end, tie))
    note_unmapped(linked[-1])
    for before, after in pairwise(linked):
        before.next, after.prev = after, before
    for block in linked:
        block.extent = extent
