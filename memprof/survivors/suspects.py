"""Which stacks' tensors deserve a search for their holders, judged from what is alive; pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from memprof.sources.places import Block
from memprof.trace import EMPTY, NOT_RECORDED, Category, Label

__all__ = ["Living", "Suspect", "residents", "suspects"]

_AGE = 2
"""Steps that a tensor has outlived before it counts: the last one's are still bound to names."""
_LEAST_BIRTHS = 3
"""Distinct steps that survivors of one stack were made in."""
_TARGETS = 3
_MOST_SUSPECTS = 48
_MOST_RESIDENTS = 24
_LEAST_SHARE = 0.01
"""Of all that is alive: smaller groups that do not grow are not worth a name."""
_EXPLAINED = (
    Category.PARAMETER,
    Category.BUFFER,
    Category.GRADIENT,
    Category.OPTIMIZER_STATE,
)


Target: TypeAlias = "int | Block"
"""What holders are searched for: a storage by its ``_cdata``, or a block of a device's memory."""


class Living(Protocol):
    """A storage or block that is alive; holds nothing."""

    @property
    def key(self) -> Target:
        """By which it is searched for."""

    @property
    def size(self) -> int:
        """Bytes."""

    @property
    def stack(self) -> int:
        """Row of its allocation's stack."""

    @property
    def label(self) -> int:
        """Row of its allocation's label."""

    @property
    def category(self) -> int:
        """`Category` as far as it is known."""


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


_Member: TypeAlias = "tuple[int, Target, int, int]"
"""Step, key, bytes and label of a storage."""


def suspects(
    living: Iterable[Living], label_of: Callable[[int], Label], step: int
) -> list[Suspect]:
    """Stacks whose survivors were made in many different steps, the most telling first.

    ``step`` is the one that has just ended; `residents` are the rest.
    """
    groups: dict[int, list[_Member]] = defaultdict(list)
    steps: dict[int, int] = {}
    for one in living:
        made = steps.get(one.label)
        if made is None:
            made = steps[one.label] = label_of(one.label).step
        if NOT_RECORDED < made <= step - _AGE:
            groups[one.stack].append((made, one.key, one.size, one.label))
    found = [_suspect(stack, members) for stack, members in groups.items()]
    found = [one for one in found if one.births >= _LEAST_BIRTHS]
    found.sort(key=lambda one: (-one.births, -one.bytes))
    return found[:_MOST_SUSPECTS]


def residents(living: Iterable[Living], label_of: Callable[[int], Label]) -> list[Suspect]:
    """The largest groups that are no parameters, buffers, gradients or optimizer state."""
    groups: dict[int, list[_Member]] = defaultdict(list)
    total = 0
    for one in living:
        total += one.size
        if one.category not in _EXPLAINED:
            made = label_of(one.label).step
            groups[one.stack].append((made, one.key, one.size, one.label))
    found = [_resident(stack, members) for stack, members in groups.items()]
    found = [one for one in found if one.bytes >= _LEAST_SHARE * total]
    found.sort(key=lambda one: -one.bytes)
    return found[:_MOST_RESIDENTS]


def _suspect(stack: int, members: Sequence[_Member]) -> Suspect:
    ordered = _by_age(members)
    births = len({made for made, *_ in ordered})
    if stack == EMPTY:  # nothing tells these apart
        births = 0
    return _described(stack, ordered, births, _spread(ordered))


def _resident(stack: int, members: Sequence[_Member]) -> Suspect:
    largest = sorted(members, key=lambda one: -one[2])
    return _described(stack, _by_age(members), 0, [key for _, key, *_ in largest[:_TARGETS]])


def _described(
    stack: int, ordered: Sequence[_Member], births: int, targets: list[Target]
) -> Suspect:
    return Suspect(
        stack=stack,
        label=ordered[-1][3],
        bytes=sum(size for _, _, size, _ in ordered),
        count=len(ordered),
        births=births,
        first_step=ordered[0][0],
        last_step=ordered[-1][0],
        targets=tuple(dict.fromkeys(targets)),
    )


def _by_age(members: Sequence[_Member]) -> list[_Member]:
    return sorted(members, key=lambda one: one[0])


def _spread(ordered: Sequence[_Member]) -> list[Target]:
    """Middle, oldest, and one of the youngest quarter: what they have in common is the holder."""
    last = len(ordered) - 1
    return [ordered[at][1] for at in (last // 2, 0, last - last // 4)]
