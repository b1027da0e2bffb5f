"""What goes back to the driver: whole free segments, on request or to make room."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from memprof.allocator import expandable
from memprof.allocator.pools import PENDING, SIZE_SHIFT, Arena, Block
from memprof.allocator.settings import NO_LIMIT
from memprof.trace import Action

if TYPE_CHECKING:
    from memprof.allocator.model import CachingAllocator

__all__ = [
    "Step",
    "available_plan",
    "cached_plan",
    "carry_out",
    "complete_pending",
    "garbage_rounds",
]

_FREE = int(Action.SEGMENT_FREE)
_UNMAP = int(Action.SEGMENT_UNMAP)
_COMPLETED = int(Action.FREE_COMPLETED)


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to give back: a whole segment, or the pages inside a free block."""

    action: int
    address: int
    size: int
    block: Block


def carry_out(allocator: CachingAllocator, steps: Iterable[Step]) -> None:
    """Give back what was planned."""
    for step in steps:
        if step.action == _FREE:
            _release_segment(allocator, step.block)
        else:
            expandable.unmap(allocator, step.block)


def _release_segment(allocator: CachingAllocator, block: Block) -> None:
    arena = block.arena
    arena.remove(block)
    allocator.segments.pop(block.address, None)  # twice only if a recording contradicts itself
    allocator.device_frees += 1
    allocator.grow(-block.size)
    allocator.driver.release(block.address, block.size)
    allocator.log.append((_FREE, block.address, block.size, arena.stream, arena.pool))


def complete_pending(allocator: CachingAllocator, pool: int | None = None) -> None:
    """Wait for all streams: every deferred free (of one pool, if given) completes."""
    waiting = [b for b in allocator.live.values() if b.state == PENDING]
    for block in waiting:
        arena = block.arena
        if pool is None or arena.pool == pool:
            event = (_COMPLETED, block.address, block.requested, arena.stream, arena.pool)
            allocator.log.append(event)
            allocator.complete_free(block.address)


def cached_plan(
    allocator: CachingAllocator, pool: int | None = None, private: Iterable[int] | None = None
) -> list[Step]:
    """``release_cached_blocks``: all that is free and a whole segment, or whole pages.

    The default pool gives its large segments first, private pools their small ones; only private
    pools that nobody uses any more (``private``; the allocator's own list where left out) give
    anything. With ``pool`` only that private pool gives.
    """
    idle = sorted(allocator.freeable_pools) if private is None else private
    steps: list[Step] = []
    if pool is None and not allocator.capturing:
        steps += _pool_plan(allocator, 0, small=False) + _pool_plan(allocator, 0, small=True)
    for other in idle:
        if pool is None or pool == other:
            steps += _pool_plan(allocator, other, small=True)
            steps += _pool_plan(allocator, other, small=False)
    return steps


def _pool_arenas(allocator: CachingAllocator, pool: int, small: bool) -> list[Arena]:
    of_pool = [a for a in allocator.arenas() if a.pool == pool and a.small == small]
    # A stream is a pointer to torch: unsigned.
    return sorted(of_pool, key=lambda a: a.stream % (1 << 64))


def _pool_plan(allocator: CachingAllocator, pool: int, *, small: bool) -> list[Step]:
    whole: list[Step] = []
    pages: list[Step] = []
    for arena in _pool_arenas(allocator, pool, small):
        for block in arena.blocks:
            if block.extent is not None:
                start, size = expandable.pages_inside(block)
                pages += [Step(_UNMAP, start, size, block)] if size > 0 else []
            elif block.whole_segment():
                whole.append(Step(_FREE, block.address, block.size, block))
    return whole + pages


def available_plan(allocator: CachingAllocator, arena: Arena, size: int) -> tuple[list[Step], bool]:
    """``release_available_cached_blocks``: oversize blocks worth ``size`` bytes, and if they do.

    Nothing unless ``max_split_size_mb`` is set. What was found is given back even if it falls
    short.
    """
    limit = allocator.settings.max_split_size
    if limit == NO_LIMIT:
        return [], False
    least = max(size, limit)
    index = bisect_left(arena.keys, least << SIZE_SHIFT)
    if index < len(arena.blocks) and arena.blocks[index].extent is None:
        block = arena.blocks[index]
        return [Step(_FREE, block.address, block.size, block)], True
    steps: list[Step] = []
    released = 0
    for block in reversed(arena.blocks[:index]):
        if released >= least or block.size < limit:
            break
        if block.whole_segment():
            released += block.size
            steps.append(Step(_FREE, block.address, block.size, block))
    return steps, released >= least


def garbage_rounds(allocator: CachingAllocator) -> Iterator[list[Step]]:
    """``garbage_collect_cached_blocks``: round by round, the large segments unused for long.

    Age is the number of searches of the default pool since a block was freed; blocks of at least
    the mean age go. How many rounds there are depends on the excess over the threshold.
    """
    arenas = _pool_arenas(allocator, 0, small=False)
    now = arenas[0].clock[0] if arenas else 0
    unsplit = [b for a in arenas for b in a.blocks if b.prev is None and b.next is None]
    ages = {id(b): now - b.gc_count_base for b in unsplit}
    total, count = sum(ages.values()), len(unsplit)
    while count > 0:
        mean = total / count
        old = [b for b in unsplit if b.extent is None and ages[id(b)] >= mean]
        if not old:
            return
        yield [Step(_FREE, b.address, b.size, b) for b in old]
        total -= sum(ages[id(b)] for b in old)
        count -= len(old)
        old_ids = {id(b) for b in old}
        unsplit = [b for b in unsplit if id(b) not in old_ids]
