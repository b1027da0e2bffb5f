"""Tensors that were made between windows, where no stack is recorded: their size tells them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from memprof.records import Holder
from memprof.reference_chain import CYCLES, LinkKind, linked_at
from memprof.rules.growing_groups import GrowingGroup
from memprof.trace import EMPTY, NOT_RECORDED
from memprof.views.survivors import Survival

__all__ = ["StacklessGroup", "stackless_group", "with_stackless"]

Ints = npt.NDArray[np.int64]

_LEAST_COUNT = 8
_LEAST_BYTES = 4 << 20
_NEVER_MEANT = CYCLES | {
    *(LinkKind.ATEXIT, LinkKind.TASK, LinkKind.LOG_RECORD, LinkKind.TRACEBACK),
    LinkKind.EXCEPTION,
}
"""Links that nobody fills on purpose. What a list has may be all that it will ever have."""
_CONFIDENCE = 0.5
"""Of what was seen twice only: there were few, and there are many."""


@dataclass(frozen=True, slots=True, eq=False)
class StacklessGroup:
    """The largest group of tensors of one size that a later window found, and that stay."""

    size: int
    """Of each, in bytes."""
    rows: Ints
    """Of `Survival.lives`."""
    stack: int
    """That makes tensors of that size which stay, in a window; `EMPTY` where none does."""
    first: int
    """The first step between the windows."""
    last: int
    """The last step that was recorded."""

    @property
    def bytes(self) -> int:
        """Of all of them."""
        return self.size * len(self.rows)

    @property
    def per_step(self) -> float:
        """Bytes."""
        return self.bytes / max(1, self.last - self.first)


def stackless_group(survival: Survival) -> StacklessGroup | None:
    """What was made between windows and stays; None where that is little."""
    lives, steps = survival.lives, survival.steps
    if not len(steps):
        return None
    everything = np.arange(len(lives))
    stays = survival.outlast(everything)
    bare = (lives.stack == EMPTY) & (lives.allocated_in == NOT_RECORDED) & (lives.window > 0)
    rows = everything[stays & bare]
    if len(rows) < _LEAST_COUNT:
        return None
    sizes, which, counts = np.unique(lives.size[rows], return_inverse=True, return_counts=True)
    at = int((sizes * counts).argmax())
    size = int(sizes[at])
    if counts[at] < _LEAST_COUNT or size * counts[at] < _LEAST_BYTES:
        return None
    makers = lives.stack[
        (lives.stack != EMPTY) & (lives.size == size) & (lives.freed_in >= len(survival))
    ]
    gap = int(np.diff(steps).argmax()) if len(steps) > 1 else 0
    return StacklessGroup(
        size=size,
        rows=rows[which.reshape(-1) == at],
        stack=int(np.bincount(makers).argmax()) if len(makers) else EMPTY,
        first=int(steps[gap]),
        last=int(steps[-1]),
    )


def with_stackless(
    groups: Iterable[GrowingGroup],
    stackless: StacklessGroup | None,
    survival: Survival,
    holders_by_stack: Mapping[int, Sequence[Holder]],
) -> list[GrowingGroup]:
    """The groups, with what was made between windows in that which makes tensors of its size.

    Where there is no such group it is one of its own, if something holds it that is not filled on
    purpose.
    """
    every = list(groups)
    if stackless is None:
        return every
    lives = survival.lives
    for at, group in enumerate(every):
        sizes = lives.size[group.rows]
        if (
            group.stack == stackless.stack or (sizes == stackless.size).all()
        ) and not group.replaced:
            rows = np.union1d(group.rows, stackless.rows)
            first = min(stackless.first, int(survival.steps[int(group.places[0])]))
            born = lives.allocated_in[rows]
            since = rows[(born == NOT_RECORDED) | (born > group.places[0])]
            rate = float(lives.size[since].sum()) / max(1, stackless.last - first)
            every[at] = replace(group, rows=rows, per_step=max(rate, group.per_step))
            return every
    if _is_never_meant(holders_by_stack.get(EMPTY, ())):
        places = np.flatnonzero(survival.steps > stackless.first)[:1]
        group = GrowingGroup(
            stack=stackless.stack,
            rows=stackless.rows,
            places=places if len(places) else np.zeros(1, dtype=np.int64),
            per_step=stackless.per_step,
            confidence=_CONFIDENCE,
            every=1,
        )
        every.append(group)
    return every


def _is_never_meant(holders: Sequence[Holder]) -> bool:
    return any(
        any(link.kind in _NEVER_MEANT for link in one.links) or linked_at(one.links) is not None
        for one in holders[:1]
    )
