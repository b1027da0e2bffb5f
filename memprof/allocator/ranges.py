"""Which addresses of expandable segments have memory behind them, as sorted disjoint ranges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

__all__ = ["RangeSet"]


class RangeSet:
    """Disjoint ranges of addresses that can be added and taken away piece by piece."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        """No addresses."""
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(zip(self._starts, self._ends, strict=True)))

    def add(self, start: int, size: int) -> bool:
        """Add ``size`` addresses; False (and nothing is lost) where some were there already."""
        end = start + size
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        touching = range(first, last)
        fresh = all(self._starts[i] >= end or self._ends[i] <= start for i in touching)
        low = min([start, *(self._starts[i] for i in touching)])
        high = max([end, *(self._ends[i] for i in touching)])
        self._starts[first:last] = [low]
        self._ends[first:last] = [high]
        return fresh

    def remove(self, start: int, size: int) -> bool:
        """Take ``size`` addresses away; False where some were not there."""
        end = start + size
        first = bisect_right(self._ends, start)
        last = bisect_left(self._starts, end)
        remaining, total = [], 0
        for low, high in zip(self._starts[first:last], self._ends[first:last], strict=True):
            total += min(high, end) - max(low, start)
            remaining += [(a, b) for a, b in ((low, start), (end, high)) if a < b]
        self._starts[first:last] = [low for low, _ in remaining]
        self._ends[first:last] = [high for _, high in remaining]
        return total == size
