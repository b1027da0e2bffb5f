"""How long a look at torch's recorder takes, and so how much one look may find; a pure estimate."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median_high

__all__ = ["BLOCK_ROWS", "LONGEST_US", "Backoff", "ReadCost"]

LONGEST_US = 500_000
"""The longest that one look at torch's recorder may be expected to hold the job up; searches for
holders have limits of their own."""
AIM_US = 300_000
"""What a look should take at most: the rest is for writing down what it found."""
BLOCK_ROWS = 0.3
"""What a block of the heap takes of what an entry of the recorder does, stacks included."""
_FIRST_GAP_US, _LONGEST_GAP_US = 10_000_000.0, 3_600_000_000.0
"""Time after which it is tried again what would have taken too long; it doubles each time."""
_ENOUGH_ROWS, _ENOUGH_US = 1000, 20_000
"""A look at fewer, in less time, is mostly what every look costs."""
_FAR = 10


class ReadCost:
    """Time a row, an entry of the recorder, of which a block is a part: the median of some looks.

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

    def add_measurement(self, rows: float, took_us: float) -> None:
        """A look at so many rows took so long."""
        if rows < _ENOUGH_ROWS and took_us < _ENOUGH_US:
            return
        row_us = took_us / max(rows, _ENOUGH_ROWS)
        if self._forgiven and rows < _ENOUGH_ROWS and row_us > _FAR * self.row_us:
            self._forgiven -= 1
            return
        self._looks.append(row_us)

    def grow_bolder(self) -> None:
        """Forget the slowest look: who never looks again never learns that it has become fast.

        Where only one is known, or thought, it may have been half as slow.
        """
        if len(self._looks) > 1:
            self._looks.remove(max(self._looks))
        else:
            self._looks[0] /= 2

    def room(self, blocks: int = 0) -> int:
        """Entries that a look may find where so many blocks are in use.

        With very many blocks a look may take what it must, up to `LONGEST_US`; 0 beyond that.
        """
        for most_us in (AIM_US, LONGEST_US):
            room = int(most_us / self.row_us - BLOCK_ROWS * blocks)
            if room >= _ENOUGH_ROWS:
                return room
        return max(0, room)

    def duration_us(self, rows: float) -> float:
        """What a look at so many rows will probably take."""
        return rows * self.row_us


class Backoff:
    """When to try again what would have taken too long, or failed: after twice the time each."""

    def __init__(self, clock_us: Callable[[], float]) -> None:
        self._clock_us = clock_us
        self._gap_us = _FIRST_GAP_US
        self._until_us: float | None = None

    def refuse(self) -> None:
        """Not now."""
        self._until_us = self._clock_us() + self._gap_us
        self._gap_us = min(2 * self._gap_us, _LONGEST_GAP_US)

    def postpone(self) -> None:
        """It is being tried: it is no more refused, but the next refusal will last longer."""
        self._until_us = None

    def succeeded(self) -> None:
        """It worked: the next refusal is a first one again."""
        self._until_us, self._gap_us = None, _FIRST_GAP_US

    @property
    def is_refused(self) -> bool:
        """Whether it was refused, and not long enough ago."""
        return self._until_us is not None and self._clock_us() < self._until_us

    @property
    def is_due(self) -> bool:
        """Whether it was refused, and long enough ago for another try."""
        return self._until_us is not None and not self.is_refused
