"""The order in which torch looks for memory for a request, up to the out-of-memory error.

Rules: ``malloc`` and ``alloc_block`` in torch's ``CUDACachingAllocator.cpp``.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from memprof.allocator import expandable, release_segments
from memprof.allocator.pools import SIZE_SHIFT, Arena, Block
from memprof.allocator.rounding import segment_size
from memprof.trace import Action

if TYPE_CHECKING:
    from memprof.allocator.model import CachingAllocator

__all__ = ["obtain"]

_OOM = int(Action.OOM)


def obtain(allocator: CachingAllocator, arena: Arena, size: int, owner: int) -> Block | None:
    """A block of at least ``size`` bytes outside the free list; None when out of memory.

    In torch's order: collect garbage, ask the driver, borrow from a pool that lends, give back
    oversize blocks, give back all that is cached, and ask again after each.
    """
    if allocator.collects:
        _collect_garbage(allocator)
    block = _from_driver(allocator, arena, size, owner)
    if block is None and allocator.settings.throw_on_oom and _over_allowed(allocator, size):
        allocator.oom_rejections += 1
        return None
    if block is None:
        block = _from_overflow(allocator, arena, size)
    if block is None and _release_available(allocator, arena, size):
        block = _from_driver(allocator, arena, size, owner)
    if block is None and not allocator.capturing:
        allocator.empty_cache()
        allocator.retries += 1
        block = _from_driver(allocator, arena, size, owner)
    if block is None:
        allocator.ooms += 1
        free = allocator.driver.capacity - allocator.driver.used
        allocator.log.append((_OOM, free, size, arena.stream, arena.pool))
    return block


def _release_available(allocator: CachingAllocator, arena: Arena, size: int) -> bool:
    steps, enough = release_segments.available_plan(allocator, arena, size)
    release_segments.carry_out(allocator, steps)
    return enough


def _collect_garbage(allocator: CachingAllocator) -> None:
    threshold = int(allocator.settings.gc_threshold * (allocator.allowed or 0))
    excess, reclaimed = allocator.reserved - threshold, 0
    if excess <= 0:
        return
    for steps in list(
        release_segments.garbage_rounds(allocator)
    ):  # in full: releasing changes the lists
        if reclaimed >= excess:
            break
        release_segments.carry_out(allocator, steps)
        reclaimed += sum(step.size for step in steps)


def _over_allowed(allocator: CachingAllocator, size: int) -> bool:
    allowed = allocator.allowed
    if allowed is None:
        return False
    return allocator.reserved + segment_size(size, allocator.settings) > allowed


def _from_driver(allocator: CachingAllocator, arena: Arena, size: int, owner: int) -> Block | None:
    if _over_allowed(allocator, size):
        return None
    if arena.expandable:
        return expandable.allocate(allocator, arena, size, owner)
    nbytes = segment_size(size, allocator.settings)
    address = allocator.driver.allocate(nbytes)
    return None if address is None else allocator.add_segment(arena, address, nbytes, owner)


def _from_overflow(allocator: CachingAllocator, arena: Arena, size: int) -> Block | None:
    """A free block of a pool that lends to the default pool before it runs out."""
    for pool in allocator.overflow_pools if arena.pool == 0 else ():
        other = allocator.arena(pool, arena.stream, arena.small)
        index = allocator.fit(other, size, bisect_left(other.keys, size << SIZE_SHIFT))
        if index < len(other.keys):
            del other.keys[index]
            return other.blocks.pop(index)
    return None
