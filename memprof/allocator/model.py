"""A live model of torch's CUDA caching allocator: the same calls, the same addresses.

Here are allocation, splitting, freeing and merging. What comes from the driver is in
``search_order``, what goes back in ``release_segments``, expandable segments in ``expandable``.
Rules: ``DeviceCachingAllocator`` in torch's ``CUDACachingAllocator.cpp``.
"""

from __future__ import annotations

from bisect import bisect_left

from memprof.allocator import expandable, release_segments, search_order
from memprof.allocator.driver import Driver
from memprof.allocator.pools import (
    ADDRESS_BITS,
    ALLOCATED,
    FREE,
    PENDING,
    SIZE_SHIFT,
    Arena,
    Block,
)
from memprof.allocator.rounding import SMALL_SIZE, round_size
from memprof.allocator.settings import NO_LIMIT, AllocatorSettings
from memprof.allocator.versions import TieBreak
from memprof.trace import Action

__all__ = ["CachingAllocator", "SegmentEvent"]

SegmentEvent = tuple[int, int, int, int, int]
"""What happened beyond the call: action, address, size, stream, pool."""

_ALLOC = int(Action.SEGMENT_ALLOC)


class CachingAllocator:
    """The allocator of one device.

    ``malloc`` and ``free`` are what a program calls; ``log`` collects what the allocator did on
    its own account (segments obtained, released, mapped, unmapped; deferred frees completed; out
    of memory) until the caller clears it. Counters are attributes, in bytes or calls.

    What the program says of private pools: ``freeable_pools`` are used by nobody any more,
    ``fixed_pools`` have an allocator of their own and never expand, ``unsplit_pools`` do not split,
    ``overflow_pools`` lend to the default pool before it runs out.
    """

    __slots__ = (
        "_arenas",
        "_clocks",
        "_plain",
        "_plain_rounding",
        "allocated",
        "capturing",
        "counter",
        "counts_blocks",
        "device_allocs",
        "device_frees",
        "device_total",
        "driver",
        "fixed_pools",
        "freeable_pools",
        "live",
        "log",
        "oom_rejections",
        "ooms",
        "overflow_pools",
        "peak_allocated",
        "peak_reserved",
        "pending",
        "reserved",
        "retries",
        "segments",
        "settings",
        "tie_break",
        "unsplit_pools",
    )

    def __init__(
        self,
        settings: AllocatorSettings | None = None,
        *,
        tie_break: TieBreak = TieBreak.OLDEST_SEGMENT,
        driver: Driver | None = None,
        device_total: int | None = None,
    ) -> None:
        """An empty allocator.

        Args:
            settings: torch's defaults where left out.
            tie_break: the rule of the torch version to model.
            driver: where segments come from; unlimited memory where left out.
            device_total: bytes of the card, which ``memory_fraction`` is a share of; the
                driver's capacity where left out.
        """
        self.settings = settings or AllocatorSettings()
        self.tie_break = tie_break
        self.driver = driver or Driver()
        self.device_total = device_total or self.driver.capacity
        self.live: dict[int, Block] = {}
        self.segments: dict[int, tuple[int, Arena, int]] = {}  # base -> size, arena, owner
        self.log: list[SegmentEvent] = []
        self.capturing = False
        self.fixed_pools: set[int] = set()
        self.freeable_pools: set[int] = set()
        self.overflow_pools: list[int] = []
        self.unsplit_pools: set[int] = set()
        self.allocated = self.pending = self.reserved = 0
        self.peak_allocated = self.peak_reserved = 0
        self.device_allocs = self.device_frees = 0
        self.retries = self.ooms = self.oom_rejections = 0
        self._arenas: dict[tuple[int, int, bool], Arena] = {}
        self._clocks: dict[tuple[int, bool], list[int]] = {}
        self.counter = 0
        self.counts_blocks = tie_break is TieBreak.OLDEST_BLOCK
        self.apply(self.settings)

    def apply(self, settings: AllocatorSettings) -> None:
        """Change the settings of a running allocator; what is held stays as it is."""
        self.settings = settings
        for arena in self._arenas.values():
            arena.apply(settings, self._expands(arena.pool))
        self._note_shortcuts()

    def _note_shortcuts(self) -> None:
        settings = self.settings
        self._plain_rounding = not any(d > 1 for d in settings.roundup_divisions)
        self._plain = (
            settings.max_split_size == NO_LIMIT
            and not settings.expandable_segments
            and not self.collects
            and not self.unsplit_pools
            and not any(a.unmapped or self._has_expandable(a) for a in self._arenas.values())
        )

    def _expands(self, pool: int) -> bool:
        return self.settings.expandable_segments and pool not in self.fixed_pools

    def _has_expandable(self, arena: Arena) -> bool:
        return any(block.extent for block in arena.blocks) or any(
            block.extent for block in self.live.values()
        )

    @property
    def collects(self) -> bool:
        """Whether garbage collection can ever run: it needs a threshold and a fraction."""
        return self.settings.gc_threshold > 0 and self.settings.memory_fraction is not None

    @property
    def allowed(self) -> int | None:
        """Bytes that ``memory_fraction`` allows; None where no fraction is set."""
        fraction = self.settings.memory_fraction
        return None if fraction is None else int(fraction * self.device_total)

    def arena(self, pool: int, stream: int, small: bool) -> Arena:
        """The free blocks of one pool, stream and size class."""
        arena = self._arenas.get((pool, stream, small))
        if arena is None:
            clock = self._clocks.setdefault((pool, small), [0])
            arena = Arena(pool, stream, small, self.settings, clock)
            arena.apply(self.settings, self._expands(pool))
            self._arenas[pool, stream, small] = arena
        return arena

    def arenas(self) -> list[Arena]:
        """All arenas that were ever used."""
        return list(self._arenas.values())

    def next_tie(self) -> int:
        """The tie-break part of the keys of memory that is obtained now."""
        if self.tie_break is TieBreak.ADDRESS:
            return 0
        self.counter += 1
        return self.counter << ADDRESS_BITS

    def malloc(
        self, requested: int, stream: int = 0, pool: int = 0, owner: int = -1
    ) -> Block | None:
        """The block for ``requested`` bytes, or None when out of memory (``log`` says so).

        ``owner`` is any number that names the allocation; it comes back in the state.
        """
        block = self.malloc_cached(requested, stream, pool, owner)
        if block is not None:
            return block
        size = self.rounded(requested)
        arena = self.arena(pool, stream, size <= SMALL_SIZE)
        block = search_order.obtain(self, arena, size, owner)
        return None if block is None else self.take(block, size, requested, owner)

    def rounded(self, requested: int) -> int:
        """Bytes of the block for ``requested`` bytes."""
        return round_size(requested, self.settings.roundup_divisions)

    def malloc_cached(
        self, requested: int, stream: int = 0, pool: int = 0, owner: int = -1
    ) -> Block | None:
        """The block for ``requested`` bytes out of what is cached; None where none fits."""
        if self._plain_rounding and requested:
            size = (requested + 511) & -512
        else:
            size = round_size(requested, self.settings.roundup_divisions)
        arena = self._arenas.get((pool, stream, size <= SMALL_SIZE))
        if arena is None:
            arena = self.arena(pool, stream, size <= SMALL_SIZE)
        keys = arena.keys
        index = bisect_left(keys, size << SIZE_SHIFT)
        if not self._plain:
            index = self.fit(arena, size, index)
        if index == len(keys):
            return None
        del keys[index]
        return self.take(arena.blocks.pop(index), size, requested, owner)

    def take(self, block: Block, size: int, requested: int, owner: int) -> Block:
        """Put a block that is in no free list to use; what it has too much goes back."""
        if block.size != size and block.size - size >= block.arena.split_from:
            block = self.split(block, size)
        block.state = ALLOCATED
        block.requested = requested
        block.owner = owner
        self.live[block.address] = block
        self.allocated = allocated = self.allocated + block.size
        if allocated > self.peak_allocated:  # noqa: PLR1730 - a call costs more
            self.peak_allocated = allocated
        return block

    def fit(self, arena: Arena, size: int, index: int) -> int:
        """Index of the free block that torch takes, from the smallest that is large enough."""
        if self.collects:
            arena.clock[0] += 1
        blocks, settings = arena.blocks, self.settings
        if index < len(blocks) and blocks[index].extent is not None:
            index = expandable.fit(blocks, index, arena.expandable)
        if index == len(blocks):
            return index
        block_size, limit = blocks[index].size, settings.max_split_size
        if size < limit <= block_size:
            return len(blocks)
        if size >= limit and block_size >= size + settings.max_non_split_rounding:
            return len(blocks)
        return index

    def split(self, block: Block, size: int) -> Block:
        """The first ``size`` bytes of a block; the rest becomes a free block."""
        arena = block.arena
        if not self._plain and not self._may_split(arena, size):
            return block
        front = Block(arena, block.address, size, block.tie)
        if self.counts_blocks:
            front.tie = self.next_tie()
        front.extent = block.extent
        front.prev = prev = block.prev
        if prev is not None:
            prev.next = front
        front.next = block
        block.prev = front
        block.address += size
        block.size -= size
        block.key = key = block.size << SIZE_SHIFT | block.tie | block.address
        block.gc_count_base = arena.clock[0]
        index = bisect_left(arena.keys, key)
        arena.keys.insert(index, key)
        arena.blocks.insert(index, block)
        return front

    def _may_split(self, arena: Arena, size: int) -> bool:
        if arena.pool in self.unsplit_pools:
            return False
        return arena.small or arena.expandable or size < self.settings.max_split_size

    def add_segment(self, arena: Arena, address: int, size: int, owner: int = -1) -> Block:
        """Count a new segment in; its one block comes back outside the free list."""
        block = Block(arena, address, size, self.next_tie())
        self.segments[address] = (size, arena, owner)
        self.device_allocs += 1
        self.grow(size)
        self.log.append((_ALLOC, address, size, arena.stream, arena.pool))
        return block

    def grow(self, size: int) -> None:
        """Count ``size`` more (or fewer) reserved bytes."""
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def carve(self, block: Block, address: int) -> Block:
        """Take a free block out of its list, from ``address`` on; what lies before stays free."""
        arena = block.arena
        arena.remove(block)
        if address > block.address:
            front = Block(arena, block.address, address - block.address, block.tie)
            front.extent = block.extent
            front.prev, front.next = block.prev, block
            if front.prev is not None:
                front.prev.next = front
            block.prev = front
            block.address, block.size = address, block.size - front.size
            arena.insert(front)
        return block

    def request_free(self, address: int) -> Block | None:
        """The tensor is gone but another stream may still use its memory; None if not live."""
        block = self.live.get(address)
        if block is None or block.state != ALLOCATED:
            return None
        block.state = PENDING
        self.allocated -= block.size
        self.pending += block.size
        return block

    def complete_free(self, address: int) -> Block | None:
        """The block goes back to its arena; None if nothing is live at ``address``.

        The block that comes back is the free one, merged with its free neighbours.
        """
        block = self.live.pop(address, None)
        if block is None:
            return None
        if block.state == PENDING:
            self.pending -= block.size
        else:
            self.allocated -= block.size
        arena = block.arena
        keys, blocks = arena.keys, arena.blocks
        near = block.prev
        if near is not None and near.state == FREE:
            index = bisect_left(keys, near.key)
            del keys[index], blocks[index]
            block.address = near.address
            block.size += near.size
            block.prev = near = near.prev
            if near is not None:
                near.next = block
        near = block.next
        if near is not None and near.state == FREE:
            index = bisect_left(keys, near.key)
            del keys[index], blocks[index]
            block.size += near.size
            block.next = near = near.next
            if near is not None:
                near.prev = block
        block.state = FREE
        block.requested = 0
        block.key = key = block.size << SIZE_SHIFT | block.tie | block.address
        block.gc_count_base = arena.clock[0]
        index = bisect_left(keys, key)
        keys.insert(index, key)
        blocks.insert(index, block)
        return block

    free = complete_free
    """Free at once: no other stream uses the block."""

    def empty_cache(self, pool: int | None = None) -> None:
        """``torch.cuda.empty_cache()``, or of one private pool that nobody uses any more."""
        if not self.capturing and (pool is None or pool in self.freeable_pools):
            release_segments.complete_pending(self, pool)
        release_segments.carry_out(self, release_segments.cached_plan(self, pool))
