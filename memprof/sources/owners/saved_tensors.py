"""Whether a tensor that outlives its step is saved by an autograd graph or kept by the program."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from memprof.sources.cpu.live_storages import StorageReference
from memprof.sources.owners.decided_stacks import DecidedStacks
from memprof.trace import EMPTY, SURVIVOR_AGE, Category, Label, Phase

if TYPE_CHECKING:  # a millisecond of a recording's beginning
    import numpy.typing as npt

__all__ = ["SavedForBackward"]

Ints: TypeAlias = "npt.NDArray[np.int64]"

_OPEN = (Category.UNKNOWN, Category.ACTIVATION)


class SavedForBackward:
    """Decides between `Category.ACTIVATION` and `Category.UNKNOWN` for what outlived its step.

    What is alive as a backward pass begins counts as kept for it. If it is there two steps later, a
    graph still saves it or it is the program that keeps it. A look at the graphs is dear, so what
    the last look found for the tensors of a stack holds for its others until the next.
    """

    def __init__(self, label_of: Callable[[int], Label]) -> None:
        """``label_of`` gives the label in a row."""
        self._label_of = label_of
        self._decided = DecidedStacks()

    def suspects(self, living: Iterable[StorageReference], step: int) -> list[StorageReference]:
        """What a forward pass made at least two steps before ``step``, and no model refers to."""
        references = []
        for reference in living:
            if reference.category in _OPEN:
                label = self._label_of(reference.label)
                old = 0 <= label.step <= step - SURVIVOR_AGE
                if old and (reference.category or label.phase == Phase.FORWARD):
                    references.append(reference)
        return references

    def undecided(self, suspects: Iterable[StorageReference]) -> bool:
        """Whether there is one of a stack that no look at the graphs has decided yet."""
        return not all(self._decided.has(reference.stack) for reference in suspects)

    def decide(self, suspects: Iterable[StorageReference], saved: AbstractSet[int] | None) -> None:
        """Give suspects their category.

        ``saved`` are the keys of what the graphs save; None where nobody has looked.
        """
        for reference in suspects:
            if reference.category not in _OPEN:  # a model or an optimizer has it by now
                continue
            if saved is not None:
                is_saved = reference.key in saved
                reference.category = Category.ACTIVATION if is_saved else Category.UNKNOWN
                self._decided.note(reference.stack, reference.size, reference.category)
            elif reference.stack != EMPTY:
                reference.category = self._decided.category(
                    reference.stack, reference.size, reference.category
                )

    def of_dead(
        self, category: Ints, stack: Ints, size: Ints, birth_labels: Ints, death_labels: Ints
    ) -> Ints:
        """Categories of what has died, from those known while it lived.

        ``birth_labels`` and ``death_labels`` are rows of labels; ``stack`` is `EMPTY` where it is
        not at hand.
        """
        lasted = self._steps(death_labels) - self._steps(birth_labels) >= SURVIVOR_AGE
        final = np.where((category == Category.UNKNOWN) & ~lasted, Category.TEMPORARY, category)
        passing = np.flatnonzero(lasted & (category == Category.ACTIVATION))
        final[passing[self._decided.unsaved(stack[passing], size[passing])]] = Category.UNKNOWN
        return final

    def _steps(self, labels: Ints) -> Ints:
        rows, which = np.unique(labels, return_inverse=True)
        steps = np.array([self._label_of(row).step for row in rows.tolist()], dtype=np.int64)
        return steps[which] if len(steps) else steps
