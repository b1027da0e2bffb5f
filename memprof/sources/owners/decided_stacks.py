"""What the last look at autograd's graphs found for tensors, by the stack and size of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from memprof.trace import EMPTY

if TYPE_CHECKING:  # a millisecond of a recording's beginning
    import numpy.typing as npt

__all__ = ["DecidedStacks"]

Ints: TypeAlias = "npt.NDArray[np.int64]"
_MOST = 1 << 14
"""Pairs of a stack and a size that are remembered: batches of any length have ever more."""
_SIZE_BITS = 44
"""More bytes has no tensor: a stack's number and a size are one number together."""


class DecidedStacks:
    """The categories of tensors by stack and size.

    One line makes several tensors, of which a graph saves some: what is left of ``(a * b).mean()``
    is saved, and its result is not. They differ in size. A size that no look has come upon has the
    category that was found last for its stack.
    """

    def __init__(self) -> None:
        self._categories: dict[int, int] = {}
        self._latest: dict[int, int] = {}

    def note(self, stack: int, size: int, category: int) -> None:
        """Remember what was found for a stack's tensors of a size."""
        self._latest[stack] = category
        key = _key(stack, size)
        if key in self._categories or len(self._categories) < _MOST:
            self._categories[key] = category

    def has(self, stack: int) -> bool:
        """Whether a look has come upon a tensor of a stack."""
        return stack in self._latest

    def category(self, stack: int, size: int, default: int) -> int:
        """What is known of a stack's tensors of a size; ``default`` where no look came upon any."""
        return self._categories.get(_key(stack, size), self._latest.get(stack, default))

    def unsaved(self, stack: Ints, size: Ints) -> npt.NDArray[np.bool_]:
        """Per tensor: whether no graph saved the like of it; without a stack none is like it."""
        if not len(stack):  # as in most batches: what is known need not be gone through
            return np.zeros(0, dtype=np.bool_)
        keys = (np.asarray(stack, dtype=np.int64) << _SIZE_BITS) | np.asarray(size, dtype=np.int64)
        is_known = np.isin(keys, _column(self._categories))
        by_size = np.isin(keys, _column(_without_category(self._categories)))
        by_stack = np.isin(stack, _column(_without_category(self._latest)))
        unsaved: npt.NDArray[np.bool_] = np.where(is_known, by_size, by_stack) & (stack != EMPTY)
        return unsaved


def _key(stack: int, size: int) -> int:
    return (stack << _SIZE_BITS) | size


def _without_category(categories: dict[int, int]) -> list[int]:
    return [key for key, category in categories.items() if not category]


def _column(keys: dict[int, int] | list[int]) -> Ints:
    return np.fromiter(keys, dtype=np.int64, count=len(keys))
