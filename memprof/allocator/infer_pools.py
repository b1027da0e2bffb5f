"""The pool of events that do not say (torch up to 2.11): that of the segment they fall into."""

from __future__ import annotations

from bisect import bisect_right

from memprof.allocator.model import CachingAllocator
from memprof.allocator.pools import Block
from memprof.allocator.undo import Beginning
from memprof.trace import Trace

__all__ = ["PoolFinder"]

_ANY = 1 << 100
Span = tuple[int, int, int]
"""First address, the one behind the last, and the pool."""


class PoolFinder:
    """Pools by event, and by address while a replay goes on.

    Which pool serves a thread or a stream is the program's affair and not the allocator's, so it
    is taken from the recording even where only the address of the result shows it.
    """

    def __init__(self, trace: Trace, begin: Beginning, allocator: CachingAllocator) -> None:
        """``allocator`` is the one that is led along ``trace``."""
        self._allocator = allocator
        self._moment = -1
        self._spans: list[Span] = []
        pools = trace.events.pool
        states = [begin.state] if trace.end is None else [begin.state, trace.end]
        # Where only the default pool is ever named, everything is its.
        several = any((state.segments.pool > 0).any() for state in states)
        self.pools: list[int] = (pools if several else pools.clip(min=0)).tolist()
        """The pool of every event; negative where it is open."""
        for row, pool in begin.pool_of_event.items():
            self.pools[row] = pool if self.pools[row] < 0 else self.pools[row]
        self.open = frozenset(row for row, pool in enumerate(self.pools) if pool < 0)

    def pool_at(self, address: int) -> int:
        """The pool of the segment at ``address``; the default pool where there is none."""
        spans = self._segments()
        index = bisect_right(spans, (address, _ANY, _ANY)) - 1
        if index >= 0 and address < spans[index][1]:
            return spans[index][2]
        return 0

    def _segments(self) -> list[Span]:
        allocator = self._allocator
        moment = allocator.device_allocs + allocator.device_frees
        if self._moment != moment:
            self._moment = moment
            self._spans = [
                (a, a + s, arena.pool) for a, (s, arena, _) in allocator.segments.items()
            ]
            for arena in allocator.arenas():
                self._spans += [_reserved(block) for block in arena.unmapped]
            self._spans.sort()
        return self._spans


def _reserved(unmapped: Block) -> Span:
    extent = unmapped.extent
    assert extent is not None
    return extent.address, extent.address + extent.size, unmapped.arena.pool
