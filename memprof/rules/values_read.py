"""What is known of the values of large tensors: how much is zero, and how much is there again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from memprof.records import LargeValues
from memprof.trace import EMPTY
from memprof.views.window import Bools, Window

__all__ = ["Values", "rows_of", "values_by_stack_and_size"]


@dataclass(frozen=True, slots=True)
class Values:
    """What the samples of tensors of one stack and size told, of all that were looked at."""

    filled: float
    """Share of the values that are not zero, the most of one."""
    is_settled: bool
    """They were as full when half the steps were over."""
    are_graphless: bool
    """Each was computed of nothing that needs a gradient, as masks and positions are."""
    distinct: int
    """Different values that are not zero; 0: more than a byte can tell apart, or not known."""
    are_ones: bool
    """All that is not zero is the same value."""
    repeats: int
    """How often the same values are there along dimensions."""
    same: int
    """Tensors of the same values."""
    same_in_steps: int
    """The same of the step in which they were the fewest; 1 where fewer than two are known."""
    nbytes: int
    shape: tuple[int, ...]
    dim: int
    """Along it values come first and only zeros after them; -1: along none."""
    used: int
    """Places along it that the longest line fills."""
    mean_used: float
    """And a line on average."""

    @property
    def item_bytes(self) -> int:
        """Bytes of a value; 0 where there is none."""
        count = prod(self.shape)
        return self.nbytes // count if count else 0

    @property
    def extent(self) -> int:
        """Length of that dimension; 0 without one."""
        return self.shape[self.dim] if self.dim >= 0 else 0


@lru_cache(maxsize=1)
def values_by_stack_and_size(window: Window) -> dict[tuple[int, int], Values]:
    """What is known, by the stack that made tensors and their bytes."""
    known: dict[tuple[int, int], Values] = {}
    for record in window.large_values:
        for row, key in enumerate(zip(record.stack, record.size, strict=True)):
            values = _values(record, row)
            known[key] = _both(known[key], values) if key in known else values
    return known


def rows_of(window: Window, stack: int, size: int) -> Bools:
    """The lifetimes that a stack made in a size.

    And those of its size that were made where nothing was recorded, where no other stack is known
    to make such.
    """
    lives = window.lives
    rows: Bools = (lives.stack == stack) & (lives.requested == size)
    if sum(one == size for _, one in values_by_stack_and_size(window)) == 1:
        rows |= (lives.stack == EMPTY) & (lives.requested == size)
    return rows


def _values(record: LargeValues, row: int) -> Values:
    count = record.count[row]
    return Values(
        filled=record.filled[row],
        is_settled=record.settled[row] == count,
        are_graphless=bool(record.graphless) and record.graphless[row] == count,
        distinct=record.distinct[row],
        are_ones=record.ones[row] == count,
        repeats=record.repeats[row],
        same=record.same[row],
        same_in_steps=record.same_in_steps[row] if record.same_in_steps else 1,
        nbytes=record.size[row],
        shape=tuple(record.shape[row]),
        dim=record.dim[row],
        used=record.used[row],
        mean_used=record.mean_used[row],
    )


def _both(first: Values, second: Values) -> Values:
    """What holds in two windows."""
    is_alike = first.shape == second.shape and first.dim == second.dim
    return Values(
        filled=max(first.filled, second.filled),
        is_settled=first.is_settled and second.is_settled,
        are_graphless=first.are_graphless and second.are_graphless,
        distinct=max(first.distinct, second.distinct) if first.distinct * second.distinct else 0,
        are_ones=first.are_ones and second.are_ones,
        repeats=min(first.repeats, second.repeats),
        same=min(first.same, second.same),
        same_in_steps=min(first.same_in_steps, second.same_in_steps),
        nbytes=first.nbytes,
        shape=first.shape,
        dim=first.dim if is_alike else -1,
        used=max(first.used, second.used),
        mean_used=max(first.mean_used, second.mean_used),
    )
