"""Blocks, and the ordered free blocks of one pool, stream and size class.

The order is torch's: by size, then by the tie-break of the torch version, then by address. Streams
never share blocks, so every stream has a list of its own; a list of plain integers beside the list
of blocks makes the search one C call.
"""

from __future__ import annotations

from bisect import bisect_left

from memprof.allocator.rounding import MIN_BLOCK, SMALL_SEGMENT, SMALL_SIZE
from memprof.allocator.settings import AllocatorSettings

__all__ = [
    "ADDRESS_BITS",
    "ALLOCATED",
    "FREE",
    "PENDING",
    "SIZE_SHIFT",
    "UNMAPPED",
    "Arena",
    "ArenaKey",
    "Block",
    "Extent",
]

ArenaKey = tuple[int, int, bool]
"""Pool, stream and whether it serves small blocks."""

FREE, ALLOCATED, PENDING, UNMAPPED = range(4)
"""States of a block; the first three are the values of `memprof.trace.BlockState`."""

ADDRESS_BITS = 64
SIZE_SHIFT = 128
"""A key is ``size << 128 | counter << 64 | address``: one integer in torch's order."""


class Extent:
    """The address range of one expandable segment; memory is mapped behind parts of it."""

    __slots__ = ("address", "owner", "page", "size")

    def __init__(self, address: int, size: int, page: int, owner: int) -> None:
        """``page`` is the granularity of mapping; ``owner`` the allocation that asked for it."""
        self.address = address
        self.size = size
        self.page = page
        self.owner = owner


class Block:
    """A piece of a segment; neighbours in the same segment are linked by address."""

    __slots__ = (
        "address",
        "arena",
        "extent",
        "gc_count_base",
        "key",
        "next",
        "owner",
        "prev",
        "requested",
        "size",
        "state",
        "tie",
    )

    def __init__(self, arena: Arena, address: int, size: int, tie: int) -> None:
        """A free block on its own, not yet in its arena's list."""
        self.arena = arena
        self.address = address
        self.size = size
        self.tie = tie
        self.state = FREE
        self.prev: Block | None = None
        self.next: Block | None = None
        self.extent: Extent | None = None
        self.key = 0
        self.requested = 0
        self.owner = -1
        self.gc_count_base = 0

    def whole_segment(self) -> bool:
        """Whether the block is all of a segment that could go back to the driver."""
        return self.prev is None and self.next is None and self.extent is None


class Arena:
    """The free blocks of one pool, stream and size class, in the order torch searches them."""

    __slots__ = (
        "blocks",
        "clock",
        "expandable",
        "keys",
        "page",
        "pool",
        "small",
        "split_from",
        "stream",
        "unmapped",
    )

    def __init__(
        self, pool: int, stream: int, small: bool, settings: AllocatorSettings, clock: list[int]
    ) -> None:
        """``pool`` indexes the trace's table of pools; ``small`` serves blocks up to 1 MiB.

        ``clock`` holds one number, shared by all streams of the pool and size class: the searches
        so far (counted while garbage collection is on).
        """
        self.pool = pool
        self.stream = stream
        self.small = small
        self.keys: list[int] = []
        self.blocks: list[Block] = []
        self.unmapped: list[Block] = []  # by address
        self.clock = clock
        self.page = 0
        self.split_from = 0
        self.expandable = False
        self.apply(settings, settings.expandable_segments)

    def apply(self, settings: AllocatorSettings, expandable: bool) -> None:
        """Take over changed settings; ``expandable``: whether they hold for this pool."""
        self.page = SMALL_SEGMENT if self.small else settings.large_segment_size
        self.expandable = expandable
        self.split_from = MIN_BLOCK if self.small or expandable else SMALL_SIZE + 1

    def insert(self, block: Block) -> None:
        """Put a free block in its place."""
        key = block.size << SIZE_SHIFT | block.tie | block.address
        index = bisect_left(self.keys, key)
        self.keys.insert(index, key)
        self.blocks.insert(index, block)
        block.key = key
        block.gc_count_base = self.clock[0]

    def remove(self, block: Block) -> None:
        """Take a block out of the free list."""
        index = bisect_left(self.keys, block.key)
        del self.keys[index]
        del self.blocks[index]
