"""The recorded step that stands for a failure between windows, and which block is which in both.

There the job writes down what the device held, without stacks and labels. A training job does the
same in every step, mostly at the same addresses. What that tells of a failure is for others to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from memprof.allocator import Changes, Program, exact_sizes
from memprof.analysis.examination import WindowExamination
from memprof.analysis.leftovers import Moment
from memprof.analysis.owners import owners
from memprof.analysis.sites import FrameKind, frame_kind
from memprof.analysis.timeline import timeline
from memprof.trace import (
    EMPTY,
    NOT_RECORDED,
    Action,
    Blocks,
    BlockState,
    Category,
    Column,
    Events,
    Frame,
    Label,
    SegmentKind,
    State,
    Tables,
    Trace,
)
from memprof.units import format_percent

__all__ = ["Likeness", "likeness", "told_by"]

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

_OWNED = [
    int(c)
    for c in (Category.PARAMETER, Category.BUFFER, Category.GRADIENT, Category.OPTIMIZER_STATE)
]
_LEAST_BLOCK = 512
_SMALL, _LARGE_BUFFER, _LEAST_ALONE, _ROUND = 1 << 20, 20 << 20, 10 << 20, 2 << 20
"""``kMinBlockSize``; ``kSmallSize``, ``kLargeBuffer``, ``kMinLargeAlloc`` and ``kRoundLarge`` of
c10/cuda/CUDACachingAllocator: up to 1 MiB a request shares a segment, up to 10 MiB it asks for one
of 20 MiB, above for whole 2 MiB."""


@dataclass(frozen=True, slots=True, eq=False)
class Likeness:
    """A recorded step up to the allocation that failed later, and where its tensors were then."""

    moment: Moment
    """The recorded window, cut at that allocation, which fails in it."""
    window: int
    block: Ints
    """For every lifetime of the window the row of its block at the failure; -1 if it has none."""
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
            "the model's lay as they did then"
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


def likeness(windows: Sequence[Trace], window: int, event: int) -> Likeness | None:
    """The likest place of the windows before a failure; None where none is alike.

    Args:
        windows: of one device.
        window: that of the failure: what the device held and the failed request.
        event: the failed request in it.
    """
    failed = windows[window]
    state = failed.end if failed.start is None else failed.start
    if state is None or not len(state.blocks):
        return None
    best: Likeness | None = None
    earlier = [w for w in range(window - 1, -1, -1) if len(windows[w].events) > 1]
    for number in earlier[:_MOST_WINDOWS]:
        found = _in_window(windows[number], number, failed, event, state)
        if found is not None and (best is None or found.share > best.share):
            best = found
        if best is not None and best.share >= _GOOD:
            break
    return best if best is not None and best.share >= _LEAST else None


def _in_window(
    recorded: Trace, number: int, failed: Trace, event: int, state: State
) -> Likeness | None:
    places = _places(recorded, failed, event)
    if not len(places):
        return None
    trace = recorded if recorded.modelled else exact_sizes(recorded)
    whole = Moment.at(_examined(trace), len(trace.events) - 1)
    share, place = max(
        (_share(whole, state, place, _blocks_of(whole, state, place)), place)
        for place in places.tolist()
    )
    cut = Moment.at(_examined(_failing_at(trace, place, failed.events, event)), place)
    asked = -(-int(recorded.events.size[place]) // _LEAST_BLOCK) * _LEAST_BLOCK
    return Likeness(cut, number, _blocks_of(cut, state, place), state, share, asked)


def _examined(trace: Trace) -> WindowExamination:
    line = timeline(trace)
    return WindowExamination(trace, line, owners(trace, line.lives))


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
    fitting = rows[_segment_of(events.size[rows]) == _segment_of(np.array([size]))]
    if not len(fitting) and not wanted:
        return np.asarray(fitting)  # without a line, the size is all there is to go by
    return np.asarray((fitting if len(fitting) else rows)[-_MOST_PLACES:])


def _own(stack: Sequence[Frame]) -> tuple[tuple[str, int], ...]:
    return tuple((f.filename, f.line) for f in stack if frame_kind(f.filename) is FrameKind.USER)


def _segment_of(size: Ints) -> Ints:
    """Bytes of the segment that torch wants for a request: all that is known of a failed one."""
    alone = -(-size // _ROUND) * _ROUND
    large = np.where(size < _LEAST_ALONE, _LARGE_BUFFER, alone)
    return np.asarray(np.where(size <= _SMALL, _SMALL, large))


# -- blocks ------------------------------------------------------------------------------------


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
    owned = np.isin(moment.seen.owners.category.of[alive], _OWNED)
    there &= owned | ~np.isin(blocks.category[at], _OWNED)  # else it is the model's by now
    block[alive[there]] = at[there]
    free[at[there]] = False
    own = alive[~there & (moment.made_in[alive] == int(moment.steps[place]))]
    left = np.flatnonzero(free & ~np.isin(blocks.category, _OWNED))
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


def _share(moment: Moment, state: State, place: int, block: Ints) -> float:
    """Bytes that both hold, of those that either does, without the model and its optimizer."""
    blocks, lives = state.blocks, moment.seen.line.lives
    mine = (blocks.state == BlockState.ACTIVE_ALLOCATED) & ~np.isin(blocks.category, _OWNED)
    found = np.zeros(len(blocks), dtype=bool)
    found[block[block >= 0]] = True
    missing = lives.alive_at(place - 1) & (block < 0) & (lives.alloc >= 0)
    either = int(blocks.size[mine].sum()) + int(lives.size[missing].sum())
    return int(blocks.size[mine & found].sum()) / either if either else 0.0


# -- what it tells -----------------------------------------------------------------------------


def told_by(alike: Likeness, failed: Trace, event: int) -> Trace:
    """The failure with stacks, labels and categories of the recorded step, where it has none.

    What the step itself made counts as made in the step that failed. The request is the one that
    was recorded, where torch would have wanted the same segment for it.
    """
    names = _Relabelled(failed.tables, failed.label(int(failed.events.label[event])))
    blocks = _with_kept(alike, names, _with_the_step(alike, names, alike.state.blocks))
    state = replace(alike.state, blocks=blocks)
    trace = alike.moment.seen.trace
    label, size = failed.events.label.copy(), failed.events.size.copy()
    label[event] = names.of_request(int(trace.events.label[alike.moment.event]))
    size[event] = _asked(alike, int(size[event]))
    return replace(
        failed,
        events=replace(failed.events, label=label, size=size),
        tables=names.tables(),
        start=state if failed.start is not None else None,
        end=state if failed.end is not None else None,
    )


def _asked(alike: Likeness, told: int) -> int:
    """The recorded request, unless a free block would have served it or it is another one."""
    blocks, segments = alike.state.blocks, alike.state.segments
    kind = SegmentKind.SMALL if told <= _SMALL else SegmentKind.LARGE
    serving = np.isin(segments.kind, (kind, SegmentKind.UNKNOWN))[blocks.segment]
    free = blocks.size[serving & (blocks.state == BlockState.INACTIVE)].max(initial=0)
    wanted = _segment_of(np.array([alike.asked, told]))
    return alike.asked if wanted[0] == wanted[1] and alike.asked > free else told


def _with_the_step(alike: Likeness, names: _Relabelled, blocks: Blocks) -> Blocks:
    rows = np.flatnonzero(alike.block >= 0)
    of, lives = alike.block[rows], alike.moment.seen.line.lives
    own = alike.moment.made_in[rows] == alike.step
    labels = np.where(own, names.moved(lives.label[rows]), lives.label[rows])
    return _told(blocks, of, lives.stack[rows], labels, alike.moment.seen.owners.category.of[rows])


def _with_kept(alike: Likeness, names: _Relabelled, blocks: Blocks) -> Blocks:
    """With what was left behind since, by lines that were seen to leave blocks of just that size.

    In the window they did so in several steps, and nothing else of the size was alive there.
    """
    moment, lives = alike.moment, alike.moment.seen.line.lives
    category = moment.seen.owners.category.of
    held = moment.alive & ~np.isin(category, _OWNED) & (moment.made_in >= 0) & (lives.stack > 0)
    for size in _sizes_of_most(lives.size[held & (moment.made_in < moment.step)]):
        rows = np.flatnonzero(held & (lives.size == size))
        steps = np.unique(moment.made_in[rows])
        if len(np.unique(lives.stack[rows])) > 1 or len(steps) < _LEAST_STEPS:
            continue
        mine = (blocks.state == BlockState.ACTIVE_ALLOCATED) & (blocks.size == size)
        of = np.flatnonzero(mine & (blocks.stack == EMPTY) & ~np.isin(blocks.category, _OWNED))
        row = np.full(len(of), rows[0])
        labels = names.undated(lives.label[row])
        blocks = _told(blocks, of, lives.stack[row], labels, category[row])
    return blocks


def _sizes_of_most(sizes: Ints) -> list[int]:
    """The sizes that most bytes are of."""
    known, counts = np.unique(sizes, return_counts=True)
    order = np.argsort(-known * counts, kind="stable")[:_MOST_SIZES]
    found: list[int] = known[order].tolist()
    return found


def _told(blocks: Blocks, rows: Ints, stack: Column, label: Column, category: Column) -> Blocks:
    return replace(
        blocks,
        stack=_filled(blocks.stack, rows, stack),
        label=_filled(blocks.label, rows, label),
        category=_filled(blocks.category, rows, category),
    )


def _filled(column: Column, rows: Ints, values: Ints) -> Column:
    """The column with values in those of the rows that have none."""
    filled: Column = column.copy()
    empty = filled[rows] == EMPTY
    filled[rows[empty]] = values[empty]
    return filled


class _Relabelled:
    """Labels of the recorded step as they are in the one that failed."""

    def __init__(self, tables: Tables, request: Label) -> None:
        self._tables, self._request = tables, request
        self._labels = list(tables.labels)
        self._dated: dict[tuple[int, int], int] = {}

    def moved(self, rows: Column) -> Ints:
        """The rows for labels of the failed step."""
        return np.array([self._row(row, self._request.step) for row in rows.tolist()], np.int64)

    def undated(self, rows: Column) -> Ints:
        """The rows for labels that name no step."""
        return np.array([self._row(row, NOT_RECORDED) for row in rows.tolist()], np.int64)

    def _row(self, row: int, step: int) -> int:
        if (row, step) not in self._dated:
            self._dated[row, step] = len(self._labels)
            self._labels.append(replace(self._labels[row], step=step))
        return self._dated[row, step]

    def of_request(self, row: int) -> int:
        """For the failed request, which knows no module between windows: that of the other."""
        label, own = self._labels[row], self._request
        phase = own.phase if own.module else label.phase
        self._labels.append(replace(own, phase=phase, module=own.module or label.module))
        return len(self._labels) - 1

    def tables(self) -> Tables:
        """All labels."""
        return replace(self._tables, labels=tuple(self._labels))
