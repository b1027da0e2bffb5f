"""What goes back to the driver: whole free segments, on request or to make room."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from memprof.allocator import expandable
from memprof.allocator.pools import PENDING, SIZE_SHIFT, Arena, Block
from memprof.allocator.settings import NO_LIMIT
from memprof.trace import Action

if TYPE_CHECKING:
    from memprof.allocator.model import CachingAllocator

__all__ = [
    "collect_garbage",
    "complete_pending",
    "release_available",
    "release_block",
    "release_cached",
]

_FREE = int(Action.SEGMENT_FREE)
_COMPLETED = int(Action.FREE_COMPLETED)


def release_block(allocator: CachingAllocator, block: Block) -> None:
    """Give one whole free segment back (``release_block``)."""
    arena = block.arena
    arena.remove(block)
    del allocator.segments[block.address]
    allocator.device_frees += 1
    allocator.grow(-block.size)
    allocator.driver.release(block.address, block.size)
    allocator.log.append((_FREE, block.address, block.size, arena.stream, arena.pool))


def complete_pending(allocator: CachingAllocator, pool: int | None = None) -> None:
    """Wait for all streams: every deferred free (of one pool, if given) completes."""
    waiting = [b for b in allocator.live.values() if b.state == PENDING]
    for block in waiting:
        if pool is None or block.arena.pool == pool:
            event = (
                _COMPLETED,
                block.address,
                block.requested,
                block.arena.stream,
                block.arena.pool,
            )
            allocator.log.append(event)
            allocator.complete_free(block.address)


def release_cached(allocator: CachingAllocator, pool: int | None = None) -> None:
    """``release_cached_blocks``: everything that is free and a whole segment.

    The default pool gives its large segments first, private pools their small ones; only private
    pools that nobody uses any more give anything (``freeable_pools``).
    """
    if pool is None:
        if not allocator.capturing:
            complete_pending(allocator)
            _release_all(allocator, 0, small=False)
            _release_all(allocator, 0, small=True)
    elif pool in allocator.freeable_pools:
        complete_pending(allocator, pool)
    for private in sorted(allocator.freeable_pools):
        if pool is None or pool == private:
            _release_all(allocator, private, small=True)
            _release_all(allocator, private, small=False)


def pool_arenas(allocator: CachingAllocator, pool: int, small: bool) -> list[Arena]:
    """The arenas of one pool and size class in torch's order, by stream."""
    chosen = [a for a in allocator.arenas() if a.pool == pool and a.small == small]
    # A stream is a pointer to torch: unsigned.
    return sorted(chosen, key=lambda a: a.stream % (1 << 64))


def _release_all(allocator: CachingAllocator, pool: int, *, small: bool) -> None:
    to_unmap: list[Block] = []
    for arena in pool_arenas(allocator, pool, small):
        for block in list(arena.blocks):
            if block.extent is not None:
                to_unmap.append(block)
            elif block.whole_segment():
                release_block(allocator, block)
    for block in to_unmap:
        expandable.unmap(allocator, block)


def release_available(allocator: CachingAllocator, arena: Arena, size: int) -> bool:
    """Give back oversize blocks until ``size`` bytes are released; False if that fails.

    ``release_available_cached_blocks``: does nothing unless ``max_split_size_mb`` is set.
    """
    limit = allocator.settings.max_split_size
    if limit == NO_LIMIT:
        return False
    wanted = max(size, limit)
    index = bisect_left(arena.keys, wanted << SIZE_SHIFT)
    if index < len(arena.blocks) and arena.blocks[index].extent is None:
        release_block(allocator, arena.blocks[index])
        return True
    released = 0
    for block in reversed(arena.blocks[:index]):
        if released >= wanted or block.size < limit:
            break
        if block.extent is None:
            released += block.size
            release_block(allocator, block)
    return released >= wanted


def collect_garbage(allocator: CachingAllocator) -> None:
    """``garbage_collect_cached_blocks``: give back large segments that have long been unused.

    Age is the number of searches of the default pool since the block was freed; blocks of at
    least the mean age go, again and again, until the excess over the threshold is back.
    """
    allowed = allocator.allowed
    if allowed is None:
        return
    threshold = int(allocator.settings.gc_threshold * allowed)
    excess = allocator.reserved - threshold
    if excess <= 0:
        return
    arenas = pool_arenas(allocator, 0, small=False)
    calls = arenas[0].clock[0] if arenas else 0
    unsplit = [b for a in arenas for b in a.blocks if b.prev is None and b.next is None]
    total_age, count, reclaimed = sum(calls - b.born for b in unsplit), len(unsplit), 0
    freed = True
    while reclaimed < excess and freed and count > 0:
        mean_age, freed = total_age / count, False
        for block in [b for b in unsplit if b.extent is None and calls - b.born >= mean_age]:
            freed = True
            reclaimed += block.size
            total_age -= calls - block.born
            count -= 1
            unsplit.remove(block)
            release_block(allocator, block)
