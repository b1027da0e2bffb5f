"""Expandable segments: addresses reserved once, memory mapped behind them page by page.

Rules: ``ExpandableSegment``, ``find_expandable_block``, ``map_block``, ``unmap_block`` in torch's
``CUDACachingAllocator.cpp``. Unmapped stretches are blocks too, in a list by address.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from memprof.allocator.pools import FREE, UNMAPPED, Arena, Block, Extent
from memprof.allocator.settings import NO_LIMIT
from memprof.trace import Action

if TYPE_CHECKING:
    from memprof.allocator.model import CachingAllocator

__all__ = [
    "allocate",
    "fit",
    "map_pages",
    "mapping_plan",
    "note_unmapped",
    "pages_inside",
    "reserve",
    "room_at",
    "unmap",
]

_MAP = int(Action.SEGMENT_MAP)
_UNMAP = int(Action.SEGMENT_UNMAP)
_UNKNOWN_CARD = 1 << 39
"""Addresses to reserve where the card's size is not known: more than any card has."""


def _address(block: Block) -> int:
    return block.address


def note_unmapped(block: Block) -> None:
    """List an unmapped block with its arena."""
    block.state = UNMAPPED
    unmapped = block.arena.unmapped
    unmapped.insert(bisect_left(unmapped, block.address, key=_address), block)


def _forget_unmapped(block: Block) -> None:
    """Take a block off the list of unmapped ones."""
    unmapped = block.arena.unmapped
    del unmapped[bisect_left(unmapped, block.address, key=_address)]


def fit(blocks: list[Block], index: int, active: bool) -> int:
    """The block to take among free ones from ``index`` on, when that one is expandable.

    A block counts as large as it could become by mapping what follows it; while expandable
    segments are switched off, expandable blocks are passed over.
    """
    last = len(blocks) - 1
    if active:
        while blocks[index].extent is not None and index < last:
            if _reach(blocks[index + 1]) >= _reach(blocks[index]):
                break
            index += 1
        return index
    while index <= last and blocks[index].extent is not None:
        index += 1
    return index


def _reach(block: Block) -> int:
    follower = block.next
    return block.size + (
        follower.size if follower is not None and follower.state == UNMAPPED else 0
    )


def allocate(allocator: CachingAllocator, arena: Arena, size: int, owner: int) -> Block | None:
    """Map memory until ``size`` free bytes lie in one block; None where the card is full.

    The block comes back outside the free list.
    """
    block = _candidate(allocator, arena, size, owner)
    if block.state == UNMAPPED and not map_pages(allocator, block, min(block.size, size)):
        return None
    while block.size < size:
        follower = block.next
        if follower is None:  # the candidate had the room, so this cannot be
            raise AssertionError("expandable segment ended early")
        if not map_pages(allocator, follower, min(size - block.size, follower.size)):
            return None
        block = follower  # it has merged with the free block before it
    arena.remove(block)
    return block


def _candidate(allocator: CachingAllocator, arena: Arena, size: int, owner: int) -> Block:
    return _room_in_view(arena, size) or reserve(allocator, arena, owner, size)


def _room_in_view(arena: Arena, size: int) -> Block | None:
    """The lowest run of free and unmapped blocks with ``size`` bytes."""
    for block in arena.unmapped:
        before = block.prev
        start = before if before is not None and before.state == FREE else block
        if _room(start, size):
            return start
    return None


def room_at(arena: Arena, size: int) -> int | None:
    """Where `allocate` finds ``size`` bytes that are mapped already; None where it maps."""
    block = _room_in_view(arena, size)
    return block.address if block is not None and not mapping_plan(arena, size) else None


def mapping_plan(arena: Arena, size: int) -> list[tuple[int | None, int]]:
    """What `allocate` would map: addresses (None: of a new reservation) and bytes, in order."""
    block = _room_in_view(arena, size)
    if block is None:
        return [(None, -(-size // arena.page) * arena.page)]
    plan: list[tuple[int | None, int]] = []
    have = 0
    while have < size:
        assert block is not None  # the run has the room
        if block.state == UNMAPPED:
            mapped = -(-min(block.size, size - have) // arena.page) * arena.page
            plan.append((block.address, mapped))
            have += mapped
        else:
            have += block.size
        block = block.next
    return plan


def _room(block: Block | None, size: int) -> bool:
    room = 0
    while room < size and block is not None and block.state in (FREE, UNMAPPED):
        room += block.size
        block = block.next
    return room >= size


def reserve(allocator: CachingAllocator, arena: Arena, owner: int, size: int = 0) -> Block:
    """A new reservation of 9/8 of the card, as one unmapped block.

    Where the card has no limit, there is room for ``size`` bytes in any case.
    """
    is_limited = allocator.device_total < NO_LIMIT
    total = max(allocator.device_total, 1) if is_limited else max(_UNKNOWN_CARD, size)
    size = -(-(total + total // 8) // arena.page) * arena.page
    address = allocator.driver.reserve(size)
    block = Block(arena, address, size, allocator.next_tie())
    block.extent = Extent(address, size, arena.page, owner)
    note_unmapped(block)
    return block


def map_pages(allocator: CachingAllocator, block: Block, size: int) -> bool:
    """Map whole pages from the start of an unmapped block; it becomes free and merges."""
    extent, arena = block.extent, block.arena
    assert extent is not None
    mapped = -(-size // extent.page) * extent.page
    if not allocator.driver.map(mapped):
        return False
    _forget_unmapped(block)
    if mapped < block.size:
        _split_off(allocator, block, mapped)
    block.state = FREE
    event = (_MAP, block.address, mapped, arena.stream, arena.pool)
    _merge(block)
    arena.insert(block)
    allocator.device_allocs += 1
    allocator.grow(mapped)
    allocator.log.append(event)
    return True


def _split_off(allocator: CachingAllocator, block: Block, size: int) -> None:
    rest = Block(
        block.arena, block.address + size, block.size - size, _inherited_remainder(allocator, block)
    )
    rest.extent = block.extent
    rest.prev, rest.next = block, block.next
    if rest.next is not None:
        rest.next.prev = rest
    block.next, block.size = rest, size
    note_unmapped(rest)


def _inherited_remainder(allocator: CachingAllocator, block: Block) -> int:
    return allocator.next_tie() if allocator.counts_blocks else block.tie


def _merge(block: Block) -> None:
    """Merge with the neighbours in the same state, free or unmapped."""
    before, after = block.prev, block.next
    if before is not None and before.state == block.state:
        _unlist(before)
        block.address, block.size, block.prev = (
            before.address,
            block.size + before.size,
            before.prev,
        )
        if block.prev is not None:
            block.prev.next = block
    if after is not None and after.state == block.state:
        _unlist(after)
        block.size, block.next = block.size + after.size, after.next
        if block.next is not None:
            block.next.prev = block


def _unlist(block: Block) -> None:
    if block.state == UNMAPPED:
        _forget_unmapped(block)
    else:
        block.arena.remove(block)


def pages_inside(block: Block) -> tuple[int, int]:
    """Address and bytes of the whole pages inside a block; no bytes where there is none."""
    extent = block.extent
    assert extent is not None
    first = -(-(block.address - extent.address) // extent.page) * extent.page
    last = (block.address + block.size - extent.address) // extent.page * extent.page
    return extent.address + first, max(last - first, 0)


def unmap(allocator: CachingAllocator, block: Block) -> None:
    """Unmap the whole pages inside a free block; what is left at its ends stays free."""
    arena = block.arena
    start, size = pages_inside(block)
    if size <= 0:
        return
    arena.remove(block)
    end = block.address + block.size
    if start > block.address:
        _keep_free(allocator, block, block.address, start - block.address, before=True)
    if end > start + size:
        _keep_free(allocator, block, start + size, end - start - size, before=False)
    block.address, block.size = start, size
    block.state = UNMAPPED
    _merge(block)
    note_unmapped(block)
    allocator.driver.unmap(size)
    allocator.device_frees += 1
    allocator.grow(-size)
    allocator.log.append((_UNMAP, start, size, arena.stream, arena.pool))
    if block.prev is None and block.next is None:
        _forget_unmapped(block)  # nothing is left of the segment: its addresses go back
        extent = block.extent
        assert extent is not None
        allocator.driver.unreserve(extent.address, extent.size)


def _keep_free(
    allocator: CachingAllocator, block: Block, address: int, size: int, *, before: bool
) -> None:
    piece = Block(block.arena, address, size, _inherited_remainder(allocator, block))
    piece.extent = block.extent
    if before:
        piece.prev, piece.next, block.prev = block.prev, block, piece
        if piece.prev is not None:
            piece.prev.next = piece
    else:
        piece.prev, piece.next, block.next = block, block.next, piece
        if piece.next is not None:
            piece.next.prev = piece
    block.arena.insert(piece)
