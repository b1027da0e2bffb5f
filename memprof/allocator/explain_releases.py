"""Why recorded memory went back to the driver: the rule of torch that gives exactly these pieces.

A call of ``empty_cache`` and a refusal by the driver leave no event of their own, so that memory is
given back is taken from the trace; what is given back, and in which order, is predicted.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from memprof.allocator import expandable, release_segments
from memprof.allocator.model import CachingAllocator
from memprof.allocator.pools import Arena, Block
from memprof.allocator.versions import TieBreak
from memprof.trace import Action

__all__ = ["Explanation", "Piece", "ReleaseCause", "ReleaseRun", "explain"]

_FREE = int(Action.SEGMENT_FREE)

Piece = tuple[int, int, int]
"""Action, address and bytes of one segment or range of pages."""


class ReleaseCause(enum.Enum):
    """What made the allocator give memory back."""

    COLLECTION = "garbage collection"
    OVERSIZE = "oversize blocks released for a request"
    CACHE = "cached blocks released"
    """By ``empty_cache``, or before a request is tried again."""
    AGE = "garbage collection of blocks that were free before the trace began"
    """How long they had been unused is not recorded."""
    ORDER = "cached blocks released, equal ones in an order from before the trace began"
    """Which of several equally large segments was obtained first is not recorded."""
    UNKNOWN = "not explained"


@dataclass(frozen=True, slots=True)
class ReleaseRun:
    """Events ``first`` to ``last`` (excluded), which gave memory back in one go."""

    first: int
    last: int
    predicted: int
    """How many of them are exactly what the model gives back at this place in the run."""
    causes: tuple[ReleaseCause, ...]
    pools: tuple[int, ...] = ()
    """Private pools that gave something back."""
    retry: bool = False
    """A request was waiting for the memory; otherwise the program asked for it."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """How many pieces were predicted, by which rules, and the private pools among them."""

    predicted: int
    causes: tuple[ReleaseCause, ...]
    pools: tuple[int, ...]


@dataclass(slots=True)
class _Run:
    allocator: CachingAllocator
    remaining: list[Piece]
    predicted: int
    causes: list[ReleaseCause]

    def match(self, steps: list[release_segments.Step], cause: ReleaseCause) -> bool:
        """Carry the steps out if the run goes on with just these."""
        planned = [(step.action, step.address, step.size) for step in steps]
        if not planned or self.remaining[: len(planned)] != planned:
            return False
        release_segments.carry_out(self.allocator, steps)
        del self.remaining[: len(planned)]
        self.predicted += len(planned)
        self.causes.append(cause)
        return True


def explain(
    allocator: CachingAllocator,
    pieces: list[Piece],
    waiting: tuple[Arena, int] | None,
    *,
    from_start: bool,
) -> Explanation:
    """Give the recorded ``pieces`` back, by the rules of torch that give just these.

    ``waiting`` is the request after them: its arena and rounded bytes. ``from_start``: something
    may have been free since before the trace began.
    """
    pools = tuple(_private_pools(allocator, pieces))
    run = _Run(allocator, list(pieces), 0, [])
    if allocator.settings.gc_threshold > 0:
        for steps in list(release_segments.garbage_rounds(allocator)):
            if not run.match(steps, ReleaseCause.COLLECTION):
                break
    if waiting is not None and run.remaining:
        run.match(release_segments.available_plan(allocator, *waiting)[0], ReleaseCause.OVERSIZE)
    while run.remaining and _match_cached(run):
        pass
    if run.remaining and from_start and _match_unordered(run):
        return Explanation(run.predicted, tuple(run.causes), pools)
    if run.remaining:
        run.predicted += _apply_recorded(run)
        aged = allocator.settings.gc_threshold > 0 and from_start
        run.causes.append(ReleaseCause.AGE if aged else ReleaseCause.UNKNOWN)
    return Explanation(run.predicted, tuple(run.causes), pools)


def _match_cached(run: _Run) -> bool:
    private = _private_pools(run.allocator, run.remaining)
    if run.match(release_segments.cached_plan(run.allocator, private=private), ReleaseCause.CACHE):
        return True
    return any(
        run.match(release_segments.cached_plan(run.allocator, pool, [pool]), ReleaseCause.CACHE)
        for pool in private
    )


def _match_unordered(run: _Run) -> bool:
    """Whether only the order among equally large segments is off."""
    if run.allocator.tie_break is TieBreak.ADDRESS:
        return False
    private = _private_pools(run.allocator, run.remaining)
    steps = release_segments.cached_plan(run.allocator, private=private)
    planned = [(step.action, step.address, step.size) for step in steps]
    sizes = [piece[2] for piece in planned] == [piece[2] for piece in run.remaining]
    if not sizes or sorted(planned) != sorted(run.remaining):
        return False
    run.predicted += sum(a == b for a, b in zip(planned, run.remaining, strict=True))
    release_segments.carry_out(run.allocator, steps)
    run.causes.append(ReleaseCause.ORDER)
    return True


def _private_pools(allocator: CachingAllocator, pieces: list[Piece]) -> list[int]:
    """Private pools that give something back, in the order they do (only idle pools give)."""
    pools = {}
    for action, address, _ in pieces:
        segment = allocator.segments.get(address) if action == _FREE else None
        if segment is not None and segment[1].pool != 0:
            pools[segment[1].pool] = True
    return list(pools)


def _apply_recorded(run: _Run) -> int:
    """Give back what was recorded though no rule explains it; how many the model had in place."""
    planned = release_segments.cached_plan(
        run.allocator, private=_private_pools(run.allocator, run.remaining)
    )
    agreed = sum(
        (step.action, step.address, step.size) == piece
        for step, piece in zip(planned, run.remaining, strict=False)
    )
    for piece in run.remaining:
        _give_back(run.allocator, piece)
    return agreed


def _give_back(allocator: CachingAllocator, piece: Piece) -> None:
    action, address, size = piece
    block = free_block_at(allocator, address, size)
    if block is None:
        return  # the model holds something there: the recording has holes
    if action == _FREE:
        if block.whole_segment() and block.size == size:
            release_segments.carry_out(
                allocator, [release_segments.Step(action, address, size, block)]
            )
    elif block.extent is not None:
        block = allocator.carve(block, address)
        if block.size > size:
            block = allocator.split(block, size)
        block.arena.insert(block)
        expandable.unmap(allocator, block)


def free_block_at(allocator: CachingAllocator, address: int, size: int) -> Block | None:
    """The free block that holds ``size`` bytes from ``address`` on."""
    for arena in allocator.arenas():
        for block in arena.blocks:
            if block.address <= address and address + size <= block.address + block.size:
                return block
    return None
