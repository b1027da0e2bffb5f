"""What a peak would have been without some tensors, or with their lives cut short.

The sum of lifetimes is replayed, not the allocator: reserved bytes and fragmentation are not in it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from memprof.views.timeline import Timeline

__all__ = ["Cuts", "Saving", "replayed"]

Ints = npt.NDArray[np.int64]
_ALL = slice(None)


@dataclass(frozen=True, slots=True)
class Saving:
    """Allocated bytes at the peak before and after a change."""

    before: int
    after: int
    overall_before: int = -1
    """The same with the warm-up, where that was left out; -1 where it was not."""
    overall_after: int = -1

    @property
    def bytes(self) -> int:
        """What the change takes off the peak; never negative."""
        return max(0, self.before - self.after)

    @property
    def overall(self) -> Saving:
        """The peak of the whole window with and without it: the one that reports speak of."""
        if self.overall_before < 0:
            return self
        return Saving(self.overall_before, self.overall_after)

    def keeping(self, nbytes: int) -> Saving:
        """The same where so much is there in place of what is not."""
        overall = self.overall
        return Saving(
            self.before,
            min(self.before, self.after + nbytes),
            overall.before,
            min(overall.before, overall.after + nbytes),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Cuts:
    """Stretches in which lifetimes are taken to be gone: arrays of equal length.

    ``rows`` may name a lifetime twice, with stretches that do not overlap. A stretch that ends
    before it starts is one in which the bytes are there already, before their tensor was made.
    """

    rows: Ints
    start: Ints
    """The first event after which the bytes are gone; -1 for the start of the trace."""
    end: Ints
    """The event at which they were really freed, or come back."""
    bytes: Ints | None = None
    """How much of each is gone; None: all of it."""

    @classmethod
    def whole(cls, line: Timeline, rows: Ints) -> Cuts:
        """Lifetimes that do not happen at all."""
        return cls(rows, line.lives.alloc[rows], line.lives.free[rows])

    @classmethod
    def joined(cls, *parts: Cuts) -> Cuts:
        """The stretches of several, all whole lifetimes' bytes."""
        return cls(
            np.concatenate([one.rows for one in parts]),
            np.concatenate([one.start for one in parts]),
            np.concatenate([one.end for one in parts]),
        )

    @classmethod
    def ended_at(cls, line: Timeline, rows: Ints, at: Ints) -> Cuts:
        """Lifetimes that end at an event each, where that is before their own end."""
        start = np.maximum(at, line.lives.alloc[rows])
        return cls(rows, start, np.maximum(line.lives.free[rows], start))


def replayed(
    line: Timeline, cuts: Cuts, first: int = 0, *, counted: slice = _ALL, divisor: int = 1
) -> Saving:
    """The peak of the timeline from entry ``first`` on, with and without the bytes in ``cuts``.

    Of all entries those in ``counted`` count. A ``divisor`` of 2: without one half of each.
    """
    entries = len(line.allocated)
    change = np.zeros(entries + 1, dtype=np.int64)
    size = (line.lives.size[cuts.rows] if cuts.bytes is None else cuts.bytes) // divisor
    np.add.at(change, np.clip(cuts.start + 1, 0, entries), -size)
    np.add.at(change, np.clip(cuts.end + 1, 0, entries), size)
    after = (line.allocated + np.cumsum(change)[:-1])[counted]
    before, later = line.allocated[counted], max(0, first - (counted.start or 0))
    saving = Saving(int(before[later:].max()), int(after[later:].max()))
    if not later:
        return saving
    return replace(saving, overall_before=int(before.max()), overall_after=int(after.max()))
