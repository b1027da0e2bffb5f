"""The recorded step that stands for a failure between windows, and which block is which in both.

There the job writes down what the device held, without stacks and labels. A training job does the
same in every step, mostly at the same addresses. What that tells of a failure is for others to say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from memprof.allocator import Changes, Program, exact_sizes
from memprof.analysis.examination import WindowExamination
from memprof.analysis.leftovers import Moment
from memprof.analysis.owners import OWNED, owners
from memprof.analysis.timeline import timeline
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.trace import (
    EMPTY,
    NOT_RECORDED,
    Action,
    Blocks,
    BlockState,
    Events,
    Frame,
    State,
    Trace,
)
from memprof.units import format_percent

__all__ = ["SMALL", "Likeness", "examined", "likeness", "segment_of"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_MOST_WINDOWS = 4
"""Recorded windows that are looked at, the last one first."""
_MOST_PLACES = 64
"""Allocations of one window that are compared with the failure, the last ones."""
_LEAST = 0.5
"""Share of the bytes that are not the model's which must be found again; half of them told wrongly
would be worse than none told."""
_LEAST_STEPS = 2
"""Steps that must each have left a block of one size for others of the size to be its line's."""
_MOST_SIZES = 200
"""Sizes of blocks that are looked at for what lines leave behind."""
_GOOD = 0.9
"""A share with which no earlier window is looked at."""

_LEAST_BLOCK = 512
SMALL = 1 << 20
"""Up to this a request shares a segment of 2 MiB, …"""
_LARGE_BUFFER, _LEAST_ALONE, _ROUND = 20 << 20, 10 << 20, 2 << 20
"""… up to 10 MiB it asks for one of 20 MiB, above for whole 2 MiB (``kMinBlockSize``,
``kSmallSize``, ``kLargeBuffer``, ``kMinLargeAlloc``, ``kRoundLarge`` of CUDACachingAllocator)."""


@dataclass(frozen=True, slots=True, eq=False)
class Likeness:
    """A recorded step up to the allocation that failed later, and where its tensors were then."""

    moment: Moment
    """The recorded window, cut at that allocation, which fails in it."""
    window: int
    block: Ints
    """For every lifetime of the window the row of its block at the failure; -1 if it has none."""
    kept: Ints
    """For every block at the failure the lifetime that it is like: one that a line left behind, as
    it went on doing after the window; -1 for all others."""
    state: State
    """What the device held at the failure."""
    share: float
    """Bytes that were found again, of those that are no part of the model or its optimizer."""
    asked: int
    """Bytes that the allocation asked for which failed later; rounded as the allocator does."""

    @property
    def step(self) -> int:
        """The recorded step."""
        return self.moment.step

    @property
    def line(self) -> str:
        """Where stacks, labels and sizes come from, in words."""
        return (
            f"no window was open: lines and modules are those of step {self.step}, which was "
            f"recorded up to the same place; {format_percent(self.share, 1)} of the bytes beside "
            "the model's were as they are there"
        )

    def without(self, rows: Ints) -> Changes:
        """The failure without the blocks of some lifetimes; those that it has none of change none.

        They are gone as a whole: in the real job others might lie in their place.
        """
        found = self.block[rows]
        return Changes(gone=self.state.blocks.address[found[found >= 0]])

    def resized(self, program: Program, factors: Floats) -> Program:
        """The failure with blocks and request as many times as large as events of the window."""
        lives, blocks = self.moment.seen.line.lives, program.start.blocks
        mine = np.flatnonzero((self.block >= 0) & (lives.alloc >= 0))
        row = _rows_at(blocks, self.state.blocks.address[self.block[mine]])
        asked = np.where(blocks.requested > 0, blocks.requested, blocks.size)
        asked[row] = np.maximum(np.ceil(asked[row] * factors[lives.alloc[mine]]), 1)
        size = program.events.size.copy()
        size[-1] = max(int(np.ceil(size[-1] * factors[self.moment.event])), 1)
        start = replace(program.start, blocks=replace(blocks, requested=asked))
        return replace(program, start=start, events=replace(program.events, size=size))


def examined(trace: Trace) -> WindowExamination:
    """A window with the bytes that each block took, which a recorder does not say."""
    exact = trace if trace.modelled else exact_sizes(trace)
    line = timeline(exact)
    return WindowExamination(exact, line, owners(exact, line.lives))


def likeness(
    windows: Sequence[Trace],
    window: int,
    event: int,
    look: Callable[[Trace], WindowExamination] = examined,
) -> Likeness | None:
    """The likest place of the windows before a failure; None where none is alike.

    Args:
        windows: of one device.
        window: that of the failure: what the device held and the failed request.
        event: the failed request in it.
        look: examines a window, or has done so before.
    """
    failed = windows[window]
    state = failed.end if failed.start is None else failed.start
    if state is None or not len(state.segments):
        return None
    best: Likeness | None = None
    earlier = [w for w in range(window - 1, -1, -1) if len(windows[w].events) > 1]
    for number in earlier[:_MOST_WINDOWS]:
        places = _places(windows[number], failed, event)
        if not len(places):
            continue
        found = _in_window(look(windows[number]), number, places, failed.events, event, state)
        best = found if best is None or found.share > best.share else best
        if best.share >= _GOOD:
            break
    return best if best is not None and best.share >= _LEAST else None


def _in_window(
    seen: WindowExamination, number: int, places: Ints, failed: Events, event: int, state: State
) -> Likeness:
    trace = seen.trace
    whole = Moment.at(seen, len(trace.events) - 1)
    share, place = max(
        (_share(whole, state, place, *_paired(whole, state, place)), place)
        for place in places.tolist()
    )
    cut = Moment.at(examined(_failing_at(trace, place, failed, event)), place)
    asked = -(-int(trace.events.size[place]) // _LEAST_BLOCK) * _LEAST_BLOCK
    return Likeness(cut, number, *_paired(cut, state, place), state, share, asked)


def _failing_at(trace: Trace, place: int, failed: Events, event: int) -> Trace:
    """The window up to an allocation, which fails in it as the later one did."""
    alike = trace.events.take(slice(place, place + 1))
    request = replace(
        failed.take(slice(event, event + 1)), stack=alike.stack, label=alike.label, pool=alike.pool
    )
    events: Events = Events.concatenate([trace.events.take(slice(0, place)), request])
    return replace(trace, events=events, end=None)


# -- places ------------------------------------------------------------------------------------


def _places(recorded: Trace, failed: Trace, event: int) -> Ints:
    """Allocations by the same lines of the user's as the failed one; of its size, if any are."""
    events = recorded.events
    wanted = _own(failed.stack(int(failed.events.stack[event])))
    alike = [_own(recorded.tables.stack(i)) == wanted for i in range(len(recorded.tables.stacks))]
    same = (events.action == Action.ALLOC) & np.array(alike, dtype=bool)[events.stack]
    rows = np.flatnonzero(same)
    size = int(failed.events.size[event])
    fitting = rows[segment_of(events.size[rows]) == segment_of(np.array([size]))]
    if not len(fitting) and not wanted:
        return np.asarray(fitting)  # without a line, the size is all there is to go by
    return np.asarray((fitting if len(fitting) else rows)[-_MOST_PLACES:])


def _own(stack: Sequence[Frame]) -> tuple[tuple[str, int], ...]:
    return tuple((f.filename, f.line) for f in stack if frame_kind(f.filename) is FrameKind.USER)


def segment_of(size: Ints) -> Ints:
    """Bytes of the segment that torch wants for a request: all that is known of a failed one."""
    alone = -(-size // _ROUND) * _ROUND
    large = np.where(size < _LEAST_ALONE, _LARGE_BUFFER, alone)
    return np.asarray(np.where(size <= SMALL, SMALL, large))


# -- blocks ------------------------------------------------------------------------------------


def _paired(moment: Moment, state: State, place: int) -> tuple[Ints, Ints]:
    """The block of every lifetime, and the lifetime that each other block was left behind like."""
    block = _blocks_of(moment, state, place)
    return block, _left_like(moment, state, place, block)


def _left_like(moment: Moment, state: State, place: int, block: Ints) -> Ints:
    """For blocks that no lifetime tells of one that a line left behind; -1 where there is none.

    In the window the line did so in several steps, and nothing else of that size was alive.
    """
    lives, blocks = moment.seen.line.lives, state.blocks
    kept = np.full(len(blocks), NOT_RECORDED, dtype=np.int64)
    unpaired = (blocks.state == BlockState.ACTIVE_ALLOCATED) & ~np.isin(blocks.category, OWNED)
    unpaired[_told(moment, block)] = False
    held = lives.alive_at(place - 1) & (moment.made_in >= 0) & (lives.stack > 0)
    held &= ~np.isin(moment.seen.owners.category.of, OWNED)
    past = held & (moment.made_in < moment.steps[place])
    for size in _sizes_of_most(lives.size[past]):
        rows = np.flatnonzero(held & (lives.size == size))
        steps = np.unique(moment.made_in[rows])
        if len(np.unique(lives.stack[rows])) == 1 and len(steps) >= _LEAST_STEPS:
            kept[unpaired & (blocks.size == size)] = rows[0]
    return kept


def _told(moment: Moment, block: Ints) -> Ints:
    """The blocks of lifetimes that have a line; others were there before their window, too."""
    found: Ints = block[(block >= 0) & (moment.seen.line.lives.stack != EMPTY)]
    return found


def _sizes_of_most(sizes: Ints) -> list[int]:
    """The sizes that most bytes are of."""
    known, counts = np.unique(sizes, return_counts=True)
    order = np.argsort(-known * counts, kind="stable")[:_MOST_SIZES]
    found: list[int] = known[order].tolist()
    return found


def _blocks_of(moment: Moment, state: State, place: int) -> Ints:
    """The block of every lifetime that is alive before an event: at its address, else of its size.

    Only what the step itself made may lie elsewhere than it did then.
    """
    lives, blocks = moment.seen.line.lives, state.blocks
    block = np.full(len(lives), NOT_RECORDED, dtype=np.int64)
    alive = np.flatnonzero(lives.alive_at(place - 1))
    free = blocks.state == BlockState.ACTIVE_ALLOCATED
    at = _rows_at(blocks, lives.address[alive])
    there = (blocks.address[at] == lives.address[alive]) & (blocks.size[at] == lives.size[alive])
    there &= free[at]
    owned = np.isin(moment.seen.owners.category.of[alive], OWNED)
    there &= owned | ~np.isin(blocks.category[at], OWNED)  # else it is the model's by now
    block[alive[there]] = at[there]
    free[at[there]] = False
    own = alive[~there & (moment.made_in[alive] == int(moment.steps[place]))]
    left = np.flatnonzero(free & ~np.isin(blocks.category, OWNED))
    row, of = _paired_by_size(lives.size[own], lives.address[own], blocks, left)
    block[own[row]] = of
    return block


def _rows_at(blocks: Blocks, address: Ints) -> Ints:
    """The row of the last block that does not lie behind each address; the first where all do."""
    order = np.argsort(blocks.address, kind="stable")
    place = np.searchsorted(blocks.address, address, side="right", sorter=order) - 1
    return np.asarray(order[np.maximum(place, 0)])


def _paired_by_size(
    size: Ints, address: Ints, blocks: Blocks, left: Ints
) -> tuple[npt.NDArray[np.intp], Ints]:
    """Entries of ``size`` and blocks of ``left`` that have the same size, both by address."""
    order = np.lexsort((address, size))
    mine = _numbered(size[order])
    others = left[np.lexsort((blocks.address[left], blocks.size[left]))]
    theirs = _numbered(blocks.size[others])
    keys = np.unique(np.concatenate([mine, theirs]), axis=0, return_inverse=True)[1].reshape(-1)
    _, first, second = np.intersect1d(
        keys[: len(mine)], keys[len(mine) :], assume_unique=True, return_indices=True
    )
    return order[first], others[second]


def _numbered(sizes: Ints) -> Ints:
    """Each of ascending sizes with how many equal ones come before it."""
    first = np.searchsorted(sizes, sizes, side="left")
    return np.stack([sizes, np.arange(len(sizes)) - first], axis=1)


def _share(moment: Moment, state: State, place: int, block: Ints, kept: Ints) -> float:
    """Bytes that both hold, of those that either does, without the model and its optimizer."""
    blocks, lives = state.blocks, moment.seen.line.lives
    mine = (blocks.state == BlockState.ACTIVE_ALLOCATED) & ~np.isin(blocks.category, OWNED)
    found = kept >= 0
    found[_told(moment, block)] = True
    missing = lives.alive_at(place - 1) & (block < 0) & (lives.alloc >= 0)
    either = int(blocks.size[mine].sum()) + int(lives.size[missing].sum())
    return int(blocks.size[mine & found].sum()) / either if either else 0.0
