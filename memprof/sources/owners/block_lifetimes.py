"""From a stretch of events to the lives of its blocks and their categories: pure, whole columns.

What a caching allocator's recorder writes down has addresses and times, no owners. Who owned a
block is read from what the program's own objects pointed at, at moments that are known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np

from memprof.sources.label_rows import LabelRows
from memprof.sources.owners.tensor_owners import Owner
from memprof.trace import (
    EMPTY,
    NOT_RECORDED,
    SURVIVOR_AGE,
    Action,
    Category,
    Column,
    Columns,
    Events,
    Phase,
    column,
)

if TYPE_CHECKING:  # a millisecond of a recording's beginning
    import numpy.typing as npt

__all__ = [
    "GradMode",
    "Lives",
    "OwnerSample",
    "final_of_dead",
    "lives_of",
    "own",
    "replaced",
    "settle",
    "sight",
]

Ints: TypeAlias = "npt.NDArray[np.int64]"


@dataclass(frozen=True, slots=True, eq=False)
class Lives(Columns):
    """Blocks with what is known of their allocation; positions are rows of a stretch of events."""

    address: Column = column("i8")
    size: Column = column("i8")
    """Requested bytes."""
    stack: Column = column("i4")
    label: Column = column("i4")
    event: Column = column("i8", missing=NOT_RECORDED)
    """Index of the allocation in its window; `NOT_RECORDED` for what was there before."""
    category: Column = column("u1")
    handed: Column = column("u1")
    """The category that was written last."""
    handed_label: Column = column("i4")
    """The label that was written last."""
    graph: Column = column("u1")
    """1 for what a forward pass made while gradients were wanted; 0 where not, or not known."""
    allocated_at: Column = column("i8", missing=NOT_RECORDED)
    freed_at: Column = column("i8")


class OwnerSample(msgspec.Struct, frozen=True):
    """What owners pointed at on one device at one moment, or that a recomputation ended."""

    time_us: int
    owners: Mapping[int, Owner]
    """By the address of a storage; a module may be left empty where it is not at hand."""
    recomputed: int = NOT_RECORDED
    """The step in which a forward pass was repeated, whose results a backward pass still needs."""
    failed: bool = False
    """Memory ran out here, and no event says so: a library or the driver told of it."""


class GradMode(msgspec.Struct, frozen=True):
    """From a moment on the calls of one root module want gradients, or do not."""

    time_us: int
    root: str
    """Path of the root module."""
    enabled: bool


def lives_of(before: Lives, events: Events, first: int) -> Lives:
    """The blocks of ``before`` and those that ``events`` made; ``first`` is the index of event 0.

    A free ends the latest allocation of its address; one without is left out.
    """
    allocs = np.flatnonzero(events.action == Action.ALLOC)
    new: Lives = Lives.build(
        len(allocs),
        address=events.address[allocs],
        size=events.size[allocs],
        stack=events.stack[allocs],
        label=events.label[allocs],
        event=allocs + first,
        allocated_at=allocs,
    )
    both: Lives = Lives.concatenate([before, new])
    freed = np.flatnonzero(events.action == Action.FREE_REQUESTED)
    end_rows = _ends(both, events.address[freed], freed, len(events))
    return replaced(both, freed_at=end_rows)


def _ends(lives: Lives, address: Ints, freed: Ints, events: int) -> Ints:
    """The row of the free that ends each life; ``events`` where none does."""
    at = np.concatenate([lives.allocated_at, freed])
    order = np.lexsort((at, np.concatenate([lives.address, address])))
    addresses = np.concatenate([lives.address, address])[order]
    is_free = order >= len(lives)
    ends = ~is_free[:-1] & is_free[1:] & (addresses[:-1] == addresses[1:])
    end_rows = np.full(len(lives), events, np.int64)
    end_rows[order[:-1][ends]] = at[order[1:][ends]]
    return end_rows


def settle(
    lives: Lives,
    events: Events,
    labels: LabelRows,
    samples: list[OwnerSample],
    modes: Sequence[GradMode] = (),
) -> Lives:
    """The lives with the categories that phases and sightings tell, and their owners' modules.

    ``modes`` say when forward passes wanted gradients, in the order of their times.
    """
    lives = replaced(
        lives,
        category=lives.category.copy(),
        label=lives.label.copy(),
        graph=_with_graph(lives, events, labels, modes),
    )
    forward = labels.phases(lives.label) == Phase.FORWARD
    is_activation = forward & _lived_to(_backward_rows(events, labels), lives)
    lives.category[is_activation & (lives.category == Category.UNKNOWN)] = Category.ACTIVATION
    times = np.maximum.accumulate(events.time_us)
    index = AddressIndex(lives) if len(samples) > 1 else None
    for one in samples:
        at = int(np.searchsorted(times, one.time_us, side="right"))
        if one.recomputed == NOT_RECORDED:
            own(lives, one.owners, at, labels, index)
        else:
            _keep_for_backward(lives, one.recomputed, at, labels)
    failed = [
        int(np.searchsorted(times, one.time_us, side="right")) for one in samples if one.failed
    ]
    failed += np.flatnonzero(events.action == Action.OOM).tolist()
    there = _lived_to(np.array(sorted(failed), np.int64), lives) & (lives.graph == 1)
    lives.category[there & (lives.category == Category.UNKNOWN)] = Category.ACTIVATION
    return lives


def _with_graph(
    lives: Lives, events: Events, labels: LabelRows, modes: Sequence[GradMode]
) -> Column:
    """What a forward pass with gradients made: where memory runs out in it no backward pass tells.

    Outside every module the phase is forward only after a call with gradients (`LoopWatch`).
    """
    graph_column: Column = lives.graph.copy()
    new = np.flatnonzero((lives.allocated_at >= 0) & (labels.phases(lives.label) == Phase.FORWARD))
    if not len(new):
        return graph_column
    times: dict[str, list[int]] = defaultdict(list)
    enabled: dict[str, list[bool]] = defaultdict(lambda: [False])  # before the first: not known
    for one in modes:
        times[one.root].append(one.time_us)
        enabled[one.root].append(one.enabled)
    made_us = events.time_us[lives.allocated_at[new]]
    modules, which = np.unique(labels.modules(lives.label[new]), return_inverse=True)
    names = labels.module_names()
    roots = [names[module].partition(".")[0] for module in modules.tolist()]
    number = {root: at for at, root in enumerate(dict.fromkeys(roots))}
    of_row = np.asarray([number[root] for root in roots], np.int64)[which.reshape(-1)]
    for root, at in number.items():
        of_root = of_row == at
        place = np.searchsorted(np.array(times[root], np.int64), made_us[of_root], side="right")
        graph_column[new[of_root]] = np.array(enabled[root], np.uint8)[place] if root else 1
    return graph_column


def own(
    lives: Lives,
    owners: Mapping[int, Owner],
    at: int,
    labels: LabelRows,
    index: AddressIndex | None = None,
) -> None:
    """Put what ``owners`` had at row ``at`` of the events into the columns of ``lives``.

    An input is what was made outside every module and has no other owner. ``index`` is of lives
    with the same addresses, sizes and times.
    """
    if not len(lives):
        return
    addresses = list(owners)
    rows_known = index.sight(addresses, at) if index else sight(lives, addresses, at)
    changes = []
    before = lives.label[rows_known].tolist()
    for row, label, owner in zip(rows_known.tolist(), before, owners.values(), strict=True):
        if row < 0:
            continue
        category, module = owner
        if category == Category.INPUT:
            birth_label = labels.of(label)
            if (
                birth_label.module
                or birth_label.phase not in (Phase.OTHER, Phase.UNKNOWN)
                or lives.category[row] != Category.UNKNOWN
            ):
                continue
        changes.append((row, category, labels.in_module(label, module) if module else label))
    if changes:  # of several in one block the last one counts
        rows, categories, moved = zip(*changes, strict=True)
        at_rows = np.array(rows, np.int64)
        lives.category[at_rows], lives.label[at_rows] = categories, moved


def _keep_for_backward(lives: Lives, step: int, at: int, labels: LabelRows) -> None:
    here = (lives.allocated_at < at) & (lives.freed_at >= at) & (lives.category == Category.UNKNOWN)
    again = here & (labels.phases(lives.label) == Phase.BACKWARD)
    lives.category[again & (labels.steps(lives.label) == step)] = Category.ACTIVATION


class AddressIndex:
    """The lives of a stretch in the order of their addresses: made once, asked at many moments.

    A sample has few addresses and a stretch may have a hundred thousand lives, so none of them is
    compared with all of these.
    """

    def __init__(self, lives: Lives) -> None:
        self._lives = lives
        self._order = np.lexsort((lives.allocated_at, lives.address))
        starts = lives.address[self._order]
        self._starts = starts
        ends = starts + np.maximum(lives.size[self._order], 1)
        self._furthest_ends = np.maximum.accumulate(ends)
        """Of all blocks that begin where one does, or before."""
        self._addresses, rank = np.unique(starts, return_inverse=True)
        allocated_at = lives.allocated_at[self._order] + 1
        self._stride = int(allocated_at.max(initial=0)) + 2
        self._keys = rank.reshape(-1) * self._stride + allocated_at
        """Ascending: the address, and under it the time of the allocation."""

    def sight(self, addresses: Sequence[int], at: int) -> Ints:
        """Rows of the lives that hold ``addresses``, in their order; -1: none does.

        They are alive at row ``at`` of the events; an address may lie inside a block.
        """
        targets = np.array(addresses, dtype=np.int64)
        if not len(self._starts) or not len(targets):
            return np.full(len(targets), -1, np.int64)
        rank = np.minimum(np.searchsorted(self._addresses, targets), len(self._addresses) - 1)
        wanted = rank * self._stride + min(at, self._stride - 1)
        place = np.maximum(np.searchsorted(self._keys, wanted, side="right") - 1, 0)
        row = self._order[place]
        begins_here = self._starts[place] == targets
        begins_here &= (self._lives.allocated_at[row] < at) & (self._lives.freed_at[row] >= at)
        rows: Ints = np.where(begins_here, row, -1)
        before = np.searchsorted(self._starts, targets, side="right") - 1
        may_lie_inside = ~begins_here & (before >= 0)
        may_lie_inside &= self._furthest_ends[np.maximum(before, 0)] > targets
        if may_lie_inside.any():
            rows[may_lie_inside] = _sight(self._lives, targets[may_lie_inside], at)
        return rows


def sight(lives: Lives, addresses: Sequence[int], at: int) -> Ints:
    """The same for a single moment."""
    return _sight(lives, np.array(addresses, dtype=np.int64), at)


def _sight(lives: Lives, targets: Ints, at: int) -> Ints:
    alive = np.flatnonzero((lives.allocated_at < at) & (lives.freed_at >= at))
    alive = alive[np.argsort(lives.address[alive], kind="stable")]
    if not len(alive) or not len(targets):
        return np.full(len(targets), -1, np.int64)
    starts = lives.address[alive]
    place = np.searchsorted(starts, targets, side="right") - 1
    row = alive[np.maximum(place, 0)]
    inside = (place >= 0) & (targets < lives.address[row] + np.maximum(lives.size[row], 1))
    rows: Ints = np.where(inside, row, -1)
    return rows


def _backward_rows(events: Events, labels: LabelRows) -> Ints:
    """Rows at which a backward pass was under way.

    The mark of a module comes only with the gradient of its output; before that, an allocation
    without a stack tells it, as autograd's own threads have no Python frames.
    """
    phase = labels.phases(events.label)
    bare = (events.action == Action.ALLOC) & (events.stack == EMPTY)
    bare &= bool((events.stack != EMPTY).any())
    return np.flatnonzero((phase == Phase.BACKWARD) | (bare & (phase == Phase.FORWARD)))


def _lived_to(rows: Ints, lives: Lives) -> npt.NDArray[np.bool_]:
    """Whether a life has seen the first of ``rows`` after its beginning."""
    padded = np.append(rows, np.iinfo(np.int64).max)
    reaches: npt.NDArray[np.bool_] = (
        padded[np.searchsorted(padded, lives.allocated_at, side="right")] <= lives.freed_at
    )
    return reaches


def final_of_dead(lives: Lives, events: Events, labels: LabelRows) -> Column:
    """Categories once what died is known to be nobody's: made and dropped on the way."""
    dead = lives.freed_at < len(events)
    lasted = np.zeros(len(lives), dtype=bool)
    death_steps = labels.steps(events.label[lives.freed_at[dead]])
    lasted[dead] = death_steps - labels.steps(lives.label[dead]) >= SURVIVOR_AGE
    passing = dead & ~lasted & (lives.category == Category.UNKNOWN) & (lives.event >= 0)
    category_column: Column = np.where(passing, Category.TEMPORARY, lives.category)
    return category_column


def replaced(lives: Lives, **changed: Column) -> Lives:
    """The same lives with some columns changed."""
    columns = {name: getattr(lives, name) for name in Lives.names()}
    return Lives(**{**columns, **changed})
