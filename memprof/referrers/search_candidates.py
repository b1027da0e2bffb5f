"""Which stacks' tensors deserve a search for their holders, judged from what is alive; pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from memprof.sources.tensor_addresses import DeviceBlock
from memprof.trace import EMPTY, NOT_RECORDED, SURVIVOR_AGE, Category, Column, Label

__all__ = ["Living", "Suspect", "remade", "residents", "stackless", "suspects"]

_LEAST_BIRTHS = 3
"""Distinct steps that survivors of one stack were made in."""
_TARGETS = 3
_MOST_SUSPECTS = 48
_MOST_RESIDENTS = 24
_MOST_REMADE = 8
_LEAST_ALIKE = 8
"""Tensors of one size without a stack that are taken for ones that the same line made."""
_MUCH = 0.25
"""Of all that is alive: so much have they to be."""
_LEAST_SHARE = 0.01
"""Of all that is alive: smaller groups that do not grow are not worth a name."""
_EXPLAINED = (
    Category.PARAMETER,
    Category.BUFFER,
    Category.GRADIENT,
    Category.OPTIMIZER_STATE,
)


Ints = npt.NDArray[np.int64]

Target: TypeAlias = "int | DeviceBlock"
"""What holders are searched for: a storage by its ``_cdata``, or a block of a device's memory."""


class Living(Protocol):
    """Storages or blocks that are alive, as columns; holds none of them."""

    @property
    def size(self) -> Column:
        """Bytes."""

    @property
    def stack(self) -> Column:
        """Rows of their allocations' stacks."""

    @property
    def label(self) -> Column:
        """Rows of their allocations' labels."""

    @property
    def category(self) -> Column:
        """`Category` as far as it is known."""

    def key(self, row: int) -> Target:
        """By which one of them is searched for."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """Storages of one stack that stay alive, in plain numbers."""

    stack: int
    label: int
    """Of its newest member."""
    bytes: int
    count: int
    births: int
    """Distinct steps that they were made in; 0 for what does not grow."""
    first_step: int
    last_step: int
    targets: tuple[Target, ...]
    """Keys of members whose holders speak for all: from the middle, the oldest, a young one."""
    youngest: Target
    """Key of the youngest, which may be near its holder where the search for others is cut off.
    Else it is not asked about: what has it may let go of it soon."""


@dataclass(frozen=True, slots=True)
class _StackGroup:
    """What lives of one stack."""

    stack: int
    rows: Ints
    """From the oldest to the youngest."""
    birth_steps: Ints
    """The step of each."""
    first: int
    """The least of the rows: of groups that are alike otherwise, the first one comes first."""
    births: int
    bytes: int


def suspects(living: Living, label_of: Callable[[int], Label], step: int) -> list[Suspect]:
    """Stacks whose survivors were made in many different steps, the most telling first.

    ``step`` is the one that has just ended; `residents` are the rest.
    """
    birth_steps = _steps(living.label, label_of)
    old = np.flatnonzero((birth_steps > NOT_RECORDED) & (birth_steps <= step - SURVIVOR_AGE))
    bare = old[living.stack[old] == EMPTY]
    old = old[living.stack[old] != EMPTY]
    groups = _groups(living, birth_steps, old, lambda births, _: births >= _LEAST_BIRTHS)
    groups.sort(key=lambda one: (-one.births, -one.bytes, one.first))
    groups = [*_much_of_one_size(living, birth_steps, bare), *groups[:_MOST_SUSPECTS]]
    return [_describe(living, one, one.births, _spread(one.rows)) for one in groups]


def residents(living: Living, label_of: Callable[[int], Label]) -> list[Suspect]:
    """The largest groups that are no parameters, buffers, gradients or optimizer state."""
    least = _LEAST_SHARE * int(living.size.sum())
    open_ = np.flatnonzero(~np.isin(living.category, _EXPLAINED))
    groups = _groups(living, _steps(living.label, label_of), open_, lambda _, size: size >= least)
    groups.sort(key=lambda one: (-one.bytes, one.first))
    return [_describe(living, one, 0, _largest(living, one)) for one in groups[:_MOST_RESIDENTS]]


def remade(living: Living, label_of: Callable[[int], Label], since: int) -> list[Suspect]:
    """The largest groups of a stack of which nothing was made before step ``since``.

    Whether what is made anew again and again becomes larger is told by looks that lie apart.
    """
    open_ = np.flatnonzero((living.stack != EMPTY) & ~np.isin(living.category, _EXPLAINED))
    least = _LEAST_SHARE * int(living.size.sum())
    groups = _groups(living, _steps(living.label, label_of), open_, lambda _, size: size >= least)
    groups = [one for one in groups if int(one.birth_steps[0]) >= since]
    groups.sort(key=lambda one: (-one.bytes, one.first))
    return [_describe(living, one, 0, _largest(living, one)) for one in groups[:_MOST_REMADE]]


def stackless(living: Living) -> list[Suspect]:
    """The largest group of one size that has no stack: it was made between windows, if not before.

    Or the largest of them all, as a data set that was made in one piece. Empty where neither is
    much of all that is alive.
    """
    bare = np.flatnonzero(living.stack == EMPTY)
    steps = np.zeros(len(living.size), np.int64)
    groups = _much_of_one_size(living, steps, bare, least_births=0)
    groups = groups or _much_in_one(living, steps, bare)
    return [_describe(living, one, 0, _spread(one.rows)) for one in groups]


def _much_of_one_size(
    living: Living, birth_steps: Ints, bare: Ints, least_births: int = _LEAST_BIRTHS
) -> list[_StackGroup]:
    """The largest group of one size of some rows without a stack, if it is much of all there is.

    Only their size tells them apart: threads and C++ of libraries make such tensors.
    """
    bare = bare[~np.isin(living.category[bare], _EXPLAINED)]
    if len(bare) < _LEAST_ALIKE:
        return []
    sizes, which, counts = np.unique(living.size[bare], return_inverse=True, return_counts=True)
    at = int((sizes * counts).argmax())
    total = int(sizes[at] * counts[at])
    if counts[at] < _LEAST_ALIKE or total < _MUCH * int(living.size.sum()):
        return []
    rows = bare[which.reshape(-1) == at]
    rows = rows[np.argsort(birth_steps[rows], kind="stable")]
    steps = birth_steps[rows]
    births = len(np.unique(steps))
    if births < least_births:
        return []
    return [_StackGroup(EMPTY, rows, steps, int(rows.min()), births, total)]


def _much_in_one(living: Living, birth_steps: Ints, bare: Ints) -> list[_StackGroup]:
    """The largest of some rows without a stack, if it is much of all there is."""
    bare = bare[~np.isin(living.category[bare], _EXPLAINED)]
    if not len(bare):
        return []
    row = bare[[int(living.size[bare].argmax())]]
    size = int(living.size[row[0]])
    if size < _MUCH * int(living.size.sum()):
        return []
    return [_StackGroup(EMPTY, row, birth_steps[row], int(row[0]), 0, size)]


def _steps(labels: Column, label_of: Callable[[int], Label]) -> Ints:
    rows, which = np.unique(labels, return_inverse=True)
    steps = np.array([label_of(row).step for row in rows.tolist()], np.int64)
    step_column: Ints = steps[which.reshape(-1)]
    return step_column


def _groups(
    living: Living,
    birth_steps: Ints,
    rows: Ints,
    is_meant: Callable[[Ints, Ints], npt.NDArray[np.bool_]],
) -> list[_StackGroup]:
    """Some rows by their stacks, of those groups that are meant by their births and bytes."""
    if not len(rows):
        return []
    order = rows[np.lexsort((birth_steps[rows], living.stack[rows]))]
    stacks, steps = living.stack[order], birth_steps[order]
    is_other = np.append(True, stacks[1:] != stacks[:-1])
    start = np.flatnonzero(is_other)
    births = np.add.reduceat(is_other | np.append(True, steps[1:] != steps[:-1]), start, dtype=int)
    size = np.add.reduceat(living.size[order], start)
    first = np.minimum.reduceat(order, start)
    end = np.append(start[1:], len(order))
    return [
        _StackGroup(
            stack=int(stacks[start[at]]),
            rows=order[start[at] : end[at]],
            birth_steps=steps[start[at] : end[at]],
            first=int(first[at]),
            births=int(births[at]),
            bytes=int(size[at]),
        )
        for at in np.flatnonzero(is_meant(births, size)).tolist()
    ]


def _describe(living: Living, group: _StackGroup, births: int, targets: list[int]) -> Suspect:
    return Suspect(
        stack=group.stack,
        label=int(living.label[group.rows[-1]]),
        bytes=group.bytes,
        count=len(group.rows),
        births=births,
        first_step=int(group.birth_steps[0]),
        last_step=int(group.birth_steps[-1]),
        targets=tuple(dict.fromkeys(map(living.key, targets))),
        youngest=living.key(int(group.rows[-1])),
    )


def _largest(living: Living, group: _StackGroup) -> list[int]:
    rows = np.sort(group.rows)
    largest: list[int] = rows[np.argsort(-living.size[rows], kind="stable")][:_TARGETS].tolist()
    return largest


def _spread(rows: Ints) -> list[int]:
    """Middle, oldest, and one of the youngest quarter: what they have in common is the holder."""
    last = len(rows) - 1
    return [int(rows[at]) for at in (last // 2, 0, last - last // 4)]
