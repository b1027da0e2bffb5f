"""Inference of the allocator's first state from where it placed later allocations."""

from __future__ import annotations

from bisect import bisect_left

from memprof.allocator.model import CachingAllocator
from memprof.allocator.pools import ADDRESS_BITS, FREE, PENDING, Block
from memprof.allocator.rounding import MIN_BLOCK, SMALL_SIZE

__all__ = ["learn_order", "learn_remainder", "least_remainder"]


def learn_remainder(
    allocator: CachingAllocator, assumptions: set[int], choice: Block, actual: Block, rest: int
) -> bool:
    """Whether the miss shows that the block before ``choice`` owns the front of it.

    Args:
        allocator: holds all the blocks.
        assumed: addresses of blocks of the start whose size is the least it can be.
        chosen: the free block that the model took the placement from.
        actual: the free block that the allocator took it from.
        rest: bytes of ``choice`` that must belong to the block before it.
    """
    before = choice.prev
    if (
        before is None
        or before.state == FREE
        or before.owner > -2
        or before.address not in assumptions
    ):
        return False
    if not 0 < rest <= SMALL_SIZE or choice is actual or choice.size <= rest:
        return False
    arena = choice.arena
    arena.remove(choice)
    choice.address += rest
    choice.size -= rest
    arena.insert(choice)
    before.size += rest
    if before.state == PENDING:
        allocator.pending += rest
    else:
        allocator.allocated += rest
    return True


def least_remainder(choice: Block, size: int) -> int:
    """Bytes to take from a free block so that ``size`` bytes do not fit any more."""
    return choice.size - size + MIN_BLOCK


def learn_order(
    allocator: CachingAllocator, start_ties: list[int], choice: Block, actual: Block
) -> int | None:
    """A tie-break for the segment (or block) of ``actual`` that puts it before ``choice``.

    None where the order of the two is not open: different sizes, or not both of the start.
    """
    last = start_ties[-1] if start_ties else 0
    if choice.size != actual.size or max(choice.tie, actual.tie) > last or choice.tie == actual.tie:
        return None
    index = bisect_left(start_ties, choice.tie)
    before = start_ties[index - 1] if index else 0
    tie = (before + choice.tie) // 2 >> ADDRESS_BITS << ADDRESS_BITS
    if not before < tie < choice.tie:
        return None  # no room left: many orders were learned here
    start_ties.insert(index, tie)
    for block in [actual] if allocator.counts_blocks else _segment_of(actual):
        if block.state == FREE:
            block.arena.remove(block)
        block.tie = tie
        if block.state == FREE:
            block.arena.insert(block)
    return tie


def _segment_of(block: Block) -> list[Block]:
    first = block
    while first.prev is not None:
        first = first.prev
    chain = [first]
    while chain[-1].next is not None:
        chain.append(chain[-1].next)
    return chain
