"""How long a look at torch's recorder takes, and so how much one look may find; a pure estimate."""

from __future__ import annotations

from collections import deque
from statistics import median_high

__all__ = ["LONGEST_US", "Pace"]

LONGEST_US = 500_000
"""The job is never held up for longer than this."""
_AIM_US = 300_000
"""What a look should take at most: the rest is for writing down what it found."""
_ENOUGH_ROWS, _ENOUGH_US = 1000, 20_000
"""A look at fewer, in less time, is mostly what every look costs."""
_FAR = 10


class Pace:
    """Time a row (an entry of the recorder, or a block of the heap): the median of some looks.

    The first one that is slower than thought counts at once; a single slow one among others, such
    as a busy machine gives, does not.
    """

    LOOKS = 5

    def __init__(self, row_us: float, forgiven: int = 0) -> None:
        """``row_us`` is what a row is thought to take before one was measured.

        So many looks at little that take far longer are not counted: code is warmed up, and for C++
        frames libraries are searched for their names once.
        """
        self._looks = deque([row_us], maxlen=self.LOOKS)
        self._forgiven = forgiven

    @property
    def row_us(self) -> float:
        """What a row takes."""
        return median_high(self._looks)

    def measured(self, rows: int, took_us: float) -> None:
        """A look at so many rows took so long."""
        if rows < _ENOUGH_ROWS and took_us < _ENOUGH_US:
            return
        row_us = took_us / max(rows, _ENOUGH_ROWS)
        if self._forgiven and rows < _ENOUGH_ROWS and row_us > _FAR * self.row_us:
            self._forgiven -= 1
            return
        self._looks.append(row_us)

    def forget_slowest(self) -> None:
        """Be bolder the next time: who never looks again never learns that it has become fast."""
        if len(self._looks) > 1:
            self._looks.remove(max(self._looks))

    def room(self) -> int:
        """Rows that a look may find."""
        return int(_AIM_US / self.row_us)

    def duration_us(self, rows: int) -> float:
        """What a look at so many rows will probably take."""
        return rows * self.row_us
