"""What a replay came to: peaks, calls to the driver, and where it ran out of memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memprof.allocator.model import CachingAllocator
from memprof.allocator.pools import SIZE_SHIFT, Block
from memprof.trace import NOT_RECORDED

__all__ = [
    "Alive",
    "OutOfMemory",
    "Outcome",
    "PeakWatch",
    "Stacks",
    "largest_free",
    "out_of_memory",
]

_MOST_ALIVE = 20


@dataclass(frozen=True, slots=True)
class Alive:
    """What one stack held at a moment."""

    stack: int
    """Index into the trace's table of stacks; 0 where it is not known."""
    bytes: int
    count: int


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """A request that could not be served."""

    event: int
    """Index in the trace; `NOT_RECORDED` where what was live at the start did not fit."""
    requested: int
    """Bytes of the block, rounded."""
    allocated: int
    reserved: int
    largest_free: int
    alive: tuple[Alive, ...]
    """What filled the card, by stack, largest first."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One replay of a trace."""

    peak_allocated: int
    peak_reserved: int
    peak_event: int
    """Event at which reserved bytes were first at their peak; `NOT_RECORDED`: at the start."""
    unallocated: int
    """Reserved and not allocated then, …"""
    largest_free: int
    """… and the largest free block of it."""
    driver_allocs: int
    """``cudaMalloc`` calls, or maps of an expandable segment."""
    driver_frees: int
    retries: int
    """Times all cached blocks were released to serve a request."""
    oom: OutOfMemory | None = None
    """Where it ran out of memory; what came after was not replayed."""
    notes: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether it ran to its end."""
        return self.oom is None


class PeakWatch:
    """Looks at an allocator whenever it got new memory."""

    __slots__ = ("event", "largest_free", "reserved", "unallocated")

    def __init__(self, allocator: CachingAllocator) -> None:
        """Watch from the state that ``allocator`` is in."""
        self.reserved = -1
        self.event = self.unallocated = self.largest_free = 0
        self.note(NOT_RECORDED, allocator)

    def note(self, event: int, allocator: CachingAllocator) -> None:
        """Call after event ``event`` was served from new memory."""
        if allocator.reserved > self.reserved:
            self.reserved, self.event = allocator.reserved, event
            self.unallocated = allocator.reserved - allocator.allocated
            self.largest_free = largest_free(allocator)

    def outcome(
        self, allocator: CachingAllocator, oom: OutOfMemory | None, notes: tuple[str, ...] = ()
    ) -> Outcome:
        """The figures of a replay that is over."""
        return Outcome(
            peak_allocated=allocator.peak_allocated,
            peak_reserved=allocator.peak_reserved,
            peak_event=self.event,
            unallocated=self.unallocated,
            largest_free=self.largest_free,
            driver_allocs=allocator.device_allocs,
            driver_frees=allocator.device_frees,
            retries=allocator.retries,
            oom=oom,
            notes=notes,
        )


def largest_free(allocator: CachingAllocator) -> int:
    """Bytes of the largest free block; 0 where there is none."""
    return max((a.keys[-1] >> SIZE_SHIFT for a in allocator.arenas() if a.keys), default=0)


@dataclass(frozen=True, slots=True, eq=False)
class Stacks:
    """The stack of every owner: of events by their index, of blocks of the start by their row."""

    events: npt.NDArray[np.int32]
    start: npt.NDArray[np.int32]

    def of(self, owner: int) -> int:
        """The stack that allocated for ``owner``; 0 where it is not known."""
        if owner >= 0:
            return int(self.events[owner])
        return int(self.start[-2 - owner]) if owner <= -2 else 0

    def alive(self, blocks: Iterable[Block]) -> tuple[Alive, ...]:
        """Bytes and blocks by stack, largest first."""
        by_stack: dict[int, tuple[int, int]] = {}
        for block in blocks:
            stack = self.of(block.owner)
            size, count = by_stack.get(stack, (0, 0))
            by_stack[stack] = size + block.size, count + 1
        most = sorted(by_stack.items(), key=lambda item: -item[1][0])[:_MOST_ALIVE]
        return tuple(Alive(stack, size, count) for stack, (size, count) in most)


def out_of_memory(
    allocator: CachingAllocator, event: int, requested: int, stacks: Stacks
) -> OutOfMemory:
    """A picture of the allocator when a request failed."""
    return OutOfMemory(
        event=event,
        requested=requested,
        allocated=allocator.allocated,
        reserved=allocator.reserved,
        largest_free=largest_free(allocator),
        alive=stacks.alive(allocator.live.values()),
    )
