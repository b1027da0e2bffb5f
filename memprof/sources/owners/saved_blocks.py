"""Whether a graph still saves a block that outlived its step: `saved_tensors` on whole columns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from memprof.sources.label_rows import LabelRows
from memprof.sources.owners.block_lifetimes import Lives, replaced, sight
from memprof.sources.owners.decided_stacks import DecidedStacks
from memprof.trace import EMPTY, SURVIVOR_AGE, Category, Column, Events, Phase

if TYPE_CHECKING:  # a millisecond of a recording's beginning
    import numpy.typing as npt

__all__ = ["SavedBlocks", "SavedBytes"]

Ints: TypeAlias = "npt.NDArray[np.int64]"
_REST = 20
"""The graphs are followed anew when this many times the duration of the last look has passed."""

SavedBytes = Callable[[], "Mapping[str, AbstractSet[int]] | None"]
"""Addresses of what graphs save by device; None where torch does not tell, or not all of it."""


class SavedBlocks:
    """Decides between `Category.ACTIVATION` and `Category.UNKNOWN` for what outlived its step.

    The graphs are followed for stacks that were not decided before, and now and then for what they
    saved the last time.
    """

    def __init__(self, labels: LabelRows) -> None:
        self._labels = labels
        self._decided = DecidedStacks()
        self._took_s = self._ended_s = 0.0

    def judge(
        self, device: str, lives: Lives, events: Events, step: int, saved: SavedBytes
    ) -> Lives:
        """The lives with such categories changed; ``step`` is the one under way."""
        lives = replaced(lives, category=lives.category.copy())
        self._decide(device, lives, len(events), step, saved)
        self._decide_dead(lives, events)
        return lives

    def _decide(self, device: str, lives: Lives, end: int, step: int, saved: SavedBytes) -> None:
        rows = np.flatnonzero((lives.freed_at == end) & self._old(lives, step))
        if not len(rows):
            return
        if self._is_wanted(lives, rows):
            began_s = time.monotonic()
            graphs = saved()
            self._ended_s = time.monotonic()
            self._took_s = self._ended_s - began_s
            if graphs is not None:
                saved_rows = sight(lives, list(graphs.get(device, ())), end)
                is_kept = np.isin(rows, saved_rows)
                lives.category[rows] = np.where(is_kept, Category.ACTIVATION, Category.UNKNOWN)
                columns = (lives.stack[rows], lives.size[rows], lives.category[rows])
                for one in zip(*(column.tolist() for column in columns), strict=True):
                    self._decided.note(*one)
                return
        for row in rows[lives.stack[rows] != EMPTY].tolist():
            stack, size, category = lives.stack[row], lives.size[row], lives.category[row]
            lives.category[row] = self._decided.category(int(stack), int(size), int(category))

    def _is_wanted(self, lives: Lives, rows: Ints) -> bool:
        if not all(map(self._decided.has, np.unique(lives.stack[rows]).tolist())):
            return True
        rested = time.monotonic() - self._ended_s > _REST * self._took_s
        return rested and bool((lives.category[rows] == Category.ACTIVATION).any())

    def _old(self, lives: Lives, step: int) -> npt.NDArray[np.bool_]:
        birth_steps = self._labels.steps(lives.label)
        forward = self._labels.phases(lives.label) == Phase.FORWARD
        activation = lives.category == Category.ACTIVATION
        is_open = activation | (forward & (lives.category == Category.UNKNOWN))
        old: npt.NDArray[np.bool_] = (
            is_open & (birth_steps >= 0) & (birth_steps <= step - SURVIVOR_AGE)
        )
        return old

    def _decide_dead(self, lives: Lives, events: Events) -> None:
        rows = np.flatnonzero(
            (lives.freed_at < len(events)) & (lives.category == Category.ACTIVATION)
        )
        rows = rows[self._decided.unsaved(lives.stack[rows], lives.size[rows])]
        death_steps = self._labels.steps(events.label[lives.freed_at[rows]])
        lasted: Column = death_steps - self._labels.steps(lives.label[rows]) >= SURVIVOR_AGE
        lives.category[rows[lasted]] = Category.UNKNOWN
