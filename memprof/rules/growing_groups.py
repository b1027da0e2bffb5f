"""Groups of allocations whose survivors keep growing: by stack, and where stacks differ by line.

Which groups are one leak is decided in `group_by_holder`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.idioms import copies_collection, joins_tensors
from memprof.source_code.program import place_of
from memprof.trace import EMPTY, SURVIVOR_AGE, Category, Frame, Tables
from memprof.views.sites import sites
from memprof.views.survivors import Survival
from memprof.views.trend import WARM_UP, Rise, floor, rise

__all__ = ["GrowingGroup", "growing_groups"]

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_LEAST_BIRTHS = 4
_LEAST_SPAN = 8
"""Steps from the first rise to the last: less is a start, not a trend."""
_LEAST_EXACT = 4
"""Steps in a row that each add the same: of so regular a series fewer are enough."""
_LEAST_EXACT_BYTES = 64 << 10
"""In each of them."""
_LEAST_GROWN = 8
"""Steps in a row in which a tensor was replaced by a larger one."""
_BOUNDED_HISTORY = re.compile(r"/torch/optim/lbfgs\.py$")
"""L-BFGS keeps ``history_size`` directions, 100 by default, and no more."""
_COPY_MODULE = re.compile(r"/lib(?:64)?/(?:python\d[^/]*/)?copy\.py$", re.IGNORECASE)
_NEARLY_ALL = 0.8
"""Of the steps after the first: in so many a copied collection has become larger."""
_MOSTLY = 0.5
_ONE_EACH = (Category.GRADIENT, Category.OPTIMIZER_STATE)


@dataclass(frozen=True, slots=True, eq=False)
class GrowingGroup:
    """Allocations of one stack or line that stay and become more."""

    stack: int
    """The stack of most of them."""
    rows: Ints
    """Rows of `Survival.lives` that survive and that the last step left."""
    places: Ints
    """Where among the recorded step ends it grows."""
    per_step: float
    """Bytes."""
    confidence: float
    """That it grows without end, from 0 to 1."""
    every: int
    """The usual distance between two places: 1 is every step."""
    replaced: bool = False
    """One tensor, or a collection that is copied, is made anew and larger again and again."""
    collected: bool = False
    """The garbage collector was seen to free such tensors."""


def growing_groups(survival: Survival, freed: Bools) -> Iterator[GrowingGroup]:
    """Every group of ``survival`` that keeps growing, each allocation in at most one.

    ``freed`` says which allocations the garbage collector freed.
    """
    lives = survival.lives
    if len(survival) < _LEAST_SPAN + SURVIVOR_AGE:
        yield from _exact_groups(survival, freed)
        return
    survives = survival.outlive_steps
    grouped = np.zeros(len(lives), dtype=bool)
    for keys in (_by_stack(survival), _by_line(survival)):
        for rows in _groups(keys, survives & ~grouped):
            group = _ever_more(survival, rows, freed)
            if group is not None and not _is_expected(survival, group):
                grouped[rows] = True
                yield group
    replaced = (lives.born >= 0) & (lives.died > lives.born)
    for rows in _groups(_by_stack(survival), replaced & ~grouped):
        group = _ever_larger(survival, rows, freed)
        if group is not None:
            yield group


def _exact_groups(survival: Survival, freed: Bools) -> Iterator[GrowingGroup]:
    """The same for a recording of few steps: only what each step adds to, by the same bytes."""
    lives, everything = survival.lives, np.arange(len(survival.lives))
    stays = (lives.born >= 0) & survival.outlast(everything)
    for rows in _groups(_by_stack(survival), stays):
        group = _ever_the_same(survival, rows, freed)
        if group is not None and not _is_expected(survival, group):
            yield group


def _by_stack(survival: Survival) -> Ints:
    """The stack of each allocation; without one its module tells it apart, or nothing does (-1)."""
    lives = survival.lives
    keys = lives.stack.astype(np.int64)
    modules = _modules(survival.tables)[lives.label]
    nowhere = keys == EMPTY
    keys[nowhere] = np.where(modules[nowhere] > 0, -1 - modules[nowhere], -1)
    return keys


def _by_line(survival: Survival) -> Ints:
    """The user's line and the module: one line is reached by many stacks in some programs."""
    lives = survival.lives
    line = sites(survival.tables).of_stack[lives.stack].astype(np.int64)
    modules = _modules(survival.tables)[lives.label]
    return np.where(line > 0, line * (int(modules.max(initial=0)) + 1) + modules, -1)


def _modules(tables: Tables) -> Ints:
    """A number for the module of every label; copies of a model (``Net#2``) share theirs."""
    index: dict[str, int] = {"": 0}
    names = (re.sub(r"#\d+", "", label.module) for label in tables.labels)
    return np.array([index.setdefault(name, len(index)) for name in names], dtype=np.int64)


def _groups(keys: Ints, mask: Bools) -> Iterator[Ints]:
    """Rows in ``mask`` of every key that has enough of them."""
    rows = np.flatnonzero(mask & (keys != -1))
    rows = rows[np.argsort(keys[rows], kind="stable")]
    edges = np.flatnonzero(np.diff(keys[rows])) + 1
    for part in np.split(rows, edges):
        if len(part) >= _LEAST_BIRTHS:
            yield part


def _ever_more(survival: Survival, rows: Ints, freed: Bools) -> GrowingGroup | None:
    lives, length = survival.lives, len(survival)
    if len(np.unique(lives.born[rows])) < _LEAST_BIRTHS:
        return None
    count, amount = (
        _alive(lives.born[rows] + SURVIVOR_AGE, lives.died[rows], weights, length)
        for weights in (np.ones(len(rows), dtype=np.int64), lives.size[rows])
    )
    found = rise(count, amount, first=WARM_UP + SURVIVOR_AGE - 1)
    if found is None or found.places[-1] - found.places[0] < _LEAST_SPAN or found.per_place <= 0:
        return None
    left = _left(survival, rows, found)
    return _group(survival, left if len(left) else rows, left, found, freed)


def _ever_the_same(survival: Survival, rows: Ints, freed: Bools) -> GrowingGroup | None:
    """A group to which every step adds as much, from early on and up to the end."""
    lives, length = survival.lives, len(survival)
    born = lives.born[rows]
    made, count = (
        np.bincount(born[born < length], weights=w[born < length], minlength=length)
        for w in (lives.size[rows], np.ones(len(rows)))
    )
    first = int(np.flatnonzero(made)[0]) if made.any() else length
    # What the last steps made may be in variables still; it must be there, too, if this goes on.
    judged = slice(first, length - SURVIVOR_AGE)
    same = (made[judged] == made[first : first + 1]) & (count[judged] == count[first : first + 1])
    if first > WARM_UP or len(same) < _LEAST_EXACT or not same.all():
        return None
    goes_on = made[length - SURVIVOR_AGE :] >= made[first]
    if made[first] < _LEAST_EXACT_BYTES or not goes_on.all():
        return None
    places = np.arange(first, length)
    confidence = round(float(1 - 0.5 ** (len(places) / 4)), 3)
    found = Rise(places, float(made[first]), float(made[first]), confidence, 1)
    return _group(survival, rows, rows, found, freed)


def _ever_larger(survival: Survival, rows: Ints, freed: Bools) -> GrowingGroup | None:
    """A group that is made anew, larger: by joining an old tensor with a part, or by copying."""
    lives, length = survival.lives, len(survival)
    if len(rows) < _LEAST_GROWN:
        return None
    count, amount = (
        _alive(lives.born[rows], lives.died[rows], weights, length)
        for weights in (np.ones(len(rows), dtype=np.int64), lives.size[rows])
    )
    settled = count[WARM_UP:]
    if not len(settled) or settled.max() == 0:
        return None
    one_each = settled.min() == settled.max()
    if not one_each and (np.diff(settled) > 0).mean() < _NEARLY_ALL:
        return None
    if (np.diff(floor(amount)[WARM_UP:]) > 0).sum() < _LEAST_BIRTHS:
        return None
    found = rise(amount, amount)
    if found is None or found.places[-1] - found.places[0] < _LEAST_SPAN:
        return None
    if not (_joins if one_each else _copies)(survival.tables, _most(lives.stack[rows])):
        return None
    return _group(survival, rows, _left(survival, rows, found), found, freed, replaced=True)


def _group(
    survival: Survival, rows: Ints, left: Ints, found: Rise, freed: Bools, *, replaced: bool = False
) -> GrowingGroup:
    stack = _most(survival.lives.stack[rows])
    return GrowingGroup(
        stack=stack,
        rows=left,
        places=found.places,
        per_step=found.per_place,
        confidence=found.confidence,
        every=found.every,
        replaced=replaced,
        collected=bool((freed & (survival.lives.stack == stack)).any()),
    )


def _left(survival: Survival, rows: Ints, found: Rise) -> Ints:
    """Those of ``rows`` that the last step left; where a reset took all, the last rise."""
    rows_left = rows[survival.outlast(rows)]
    if len(rows_left):
        return rows_left
    born, died, last = survival.lives.born[rows], survival.lives.died[rows], int(found.places[-1])
    there: Ints = rows[(born <= last) & (last < died)]
    return there


def _alive(born: Ints, died: Ints, weights: Ints, length: int) -> Ints:
    """The sum of ``weights`` at every place; each counts from ``born`` until before ``died``."""
    change = np.zeros(length + 1, dtype=np.int64)
    there = born < np.minimum(died, length)
    np.add.at(change, born[there], weights[there])
    np.add.at(change, np.minimum(died[there], length), -weights[there])
    return np.cumsum(change[:-1])


def _most(stacks: Ints) -> int:
    values, counts = np.unique(stacks, return_counts=True)
    return int(values[counts.argmax()])


def _is_expected(survival: Survival, found: GrowingGroup) -> bool:
    """Gradients and optimizer state while there are no more than one per parameter.

    They come when a layer is unfrozen or first used, and go on for as many steps as there are
    layers; more of them than parameters means optimizers that are not given back. Where most of the
    parameters are new themselves, models pile up, and what belongs to them with them.
    """
    lives = survival.lives
    frames = survival.tables.stack(found.stack)
    if _is_history(frames):
        return True
    category = _most(lives.category[found.rows]) if len(found.rows) else 0
    if category not in _ONE_EACH:
        return False
    everything = np.arange(len(lives))
    there = (lives.category == Category.PARAMETER) & survival.outlast(everything)
    are_new = bool((lives.born[there] >= WARM_UP).mean() >= _MOSTLY) if there.any() else False
    return len(found.rows) <= int(there.sum()) and not are_new


def _is_history(frames: tuple[Frame, ...]) -> bool:
    """True if L-BFGS itself made it: the closure that it calls is the program's."""
    for frame in frames:
        if frame_kind(frame.filename) is FrameKind.USER:
            return False
        if _BOUNDED_HISTORY.search(frame.filename.replace("\\", "/")):
            return True
    return False


def _joins(tables: Tables, stack: int) -> bool:
    """True if the statement of a stack (the user's, or C++ of torch's) joins tensors."""
    if any("at::native::cat" in frame.name for frame in tables.stack(stack)):
        return True
    place = place_of(sites(tables).frames[int(sites(tables).of_stack[stack])])
    return place is not None and joins_tensors(place.statement)


def _copies(tables: Tables, stack: int) -> bool:
    """True if a stack runs through Python's `copy`, or a statement that copies a collection."""
    for frame in tables.stack(stack):
        if frame_kind(frame.filename) is FrameKind.USER:
            break
        if _COPY_MODULE.search(frame.filename.replace("\\", "/")):
            return True
    place = place_of(sites(tables).frames[int(sites(tables).of_stack[stack])])
    return place is not None and copies_collection(place)
