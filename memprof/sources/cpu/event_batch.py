"""From rows of the live storages to the events of a chunk; pure, and vectorised where it can be."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from memprof.sources.cpu.live_storages import ROW, StorageReference
from memprof.sources.owners.saved_tensors import SavedForBackward
from memprof.sources.protocol import Chunk, LateOwner
from memprof.trace import EMPTY, NOT_RECORDED, Action, Events

if TYPE_CHECKING:  # a millisecond of a recording's beginning
    import numpy.typing as npt

__all__ = ["Batch"]

Ints: TypeAlias = "npt.NDArray[np.int64]"
Bools: TypeAlias = "npt.NDArray[np.bool_]"


class Batch:
    """The rows between two drains of a window."""

    def __init__(self, rows: Sequence[int], first_event: int, outliving: SavedForBackward) -> None:
        """``first_event`` is the index in the window that the batch begins with."""
        self._saved_for_backward = outliving
        table = np.frombuffer(array("q", rows), dtype=np.int64).reshape(-1, ROW)
        self._allocs = table[:, 0] == 1
        self._table = table
        self._first = first_event
        width = np.where(self._allocs, 1, 2)
        self._starts = np.cumsum(width) - width
        self._width = width
        serials = table[self._allocs, 6]
        order = np.argsort(serials, kind="stable")
        self._serials = serials[order]
        self._alloc_starts = self._starts[self._allocs][order]
        self._stacks = table[self._allocs, 4][order]
        self.first_serial = int(self._serials[0]) if len(serials) else np.iinfo(np.int64).max
        """Of the allocations; the largest number where there are none."""

    def event_of(self, serial: int) -> int:
        """Index in the window of the allocation with this serial; -1 where it is not here."""
        at = int(np.searchsorted(self._serials, serial))
        if at < len(self._serials) and self._serials[at] == serial:
            return int(self._alloc_starts[at]) + self._first
        return NOT_RECORDED

    @property
    def allocations(self) -> tuple[Ints, Ints]:
        """The serials of the storages that were made, in order, and their indices in the window."""
        return self._serials, self._alloc_starts + self._first

    def ends_of(self, serials: Ints) -> Ints:
        """Index in the window at which each storage died; -1 where that is not here."""
        dead = self._table[~self._allocs, 6]
        order = np.argsort(dead, kind="stable")
        ends: Ints = np.full(len(serials), NOT_RECORDED, dtype=np.int64)
        if len(dead):
            at = np.minimum(np.searchsorted(dead[order], serials), len(dead) - 1)
            is_here = dead[order][at] == serials
            ends[is_here] = self._starts[~self._allocs][order][at[is_here]] + self._first
        return ends

    def allocates_between(self, first: Ints, last: Ints) -> Bools:
        """Whether something was allocated at each ``first`` event or later, before each ``last``.

        Taken for granted where ``first`` came before the batch.
        """
        starts = np.sort(self._alloc_starts) + self._first
        has: Bools = np.searchsorted(starts, first) < np.searchsorted(starts, last)
        return has | (first < self._first)

    def chunk(
        self,
        device: str,
        living: Sequence[StorageReference],
        all_living: Iterable[StorageReference],
    ) -> Chunk:
        """The events; ``living`` were made in this batch, ``all_living`` is all that lives."""
        events = self._events()
        late_events, late_blocks = self._settle_dead(events)
        for reference in living:
            if reference.event >= self._first:
                row = reference.event - self._first
                events.category[row] = reference.category
                events.label[row] = reference.label
                reference.handed, reference.handed_label = reference.category, reference.label
        for reference in all_living:
            category, label = reference.category, reference.label
            if category != reference.handed or label != reference.handed_label:
                owner = LateOwner(int(category), label)
                if reference.event >= 0:
                    late_events[reference.event] = owner
                else:
                    late_blocks[reference.address] = owner
                reference.handed, reference.handed_label = category, label
        return Chunk(device, events, late_events, late_blocks)

    def _events(self) -> Events:
        index = np.repeat(np.arange(len(self._table)), self._width)
        rows = self._table[index]
        allocs = self._allocs[index]
        second = np.zeros(len(index), dtype=bool)
        second[self._starts[~self._allocs] + 1] = True
        action = np.where(allocs, Action.ALLOC, Action.FREE_REQUESTED)
        action[second] = Action.FREE_COMPLETED
        columns = Events.build(
            action=action,
            address=rows[:, 1],
            size=rows[:, 2],
            time_us=rows[:, 3] // 1000,
            stack=np.where(allocs, rows[:, 4], 0),
            label=rows[:, 5],
            origin=np.where(allocs, rows[:, 7], EMPTY),
        )
        assert isinstance(columns, Events)
        return columns

    def _settle_dead(self, events: Events) -> tuple[dict[int, LateOwner], dict[int, LateOwner]]:
        """Owners of what died: in ``events`` itself, or late where it was handed out before."""
        dead = self._table[~self._allocs]
        owner = dead[:, 7]
        before = (owner >> 8) - 1
        category = (owner >> 4) & 15
        told_category = owner & 15
        at = np.searchsorted(self._serials, dead[:, 6])
        at = np.minimum(at, max(len(self._serials) - 1, 0))
        here = self._serials[at] == dead[:, 6] if len(self._serials) else np.zeros(len(dead), bool)
        rows = self._alloc_starts[at[here]] if len(self._serials) else at[here]
        stacks = np.full(len(dead), EMPTY)
        stacks[here] = self._stacks[at[here]] if len(self._serials) else EMPTY
        final = self._saved_for_backward.of_dead(
            category, stacks, dead[:, 2], birth_labels=dead[:, 4], death_labels=dead[:, 5]
        )
        events.category[rows] = final[here]
        events.label[rows] = dead[here, 4]
        is_late = (before >= 0) & ~here & (final != told_category)
        late_events = _late_owners(before[is_late], final[is_late], dead[is_late, 4])
        blocks = (before < 0) & ~here & (category != told_category)
        return late_events, _late_owners(dead[blocks, 1], category[blocks], dead[blocks, 4])


def _late_owners(key: Ints, category: Ints, label: Ints) -> dict[int, LateOwner]:
    late_owners = map(LateOwner, category.tolist(), label.tolist())
    return dict(zip(key.tolist(), late_owners, strict=True))
