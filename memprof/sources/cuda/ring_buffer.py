"""What is new in a ring of torch's recorder since the last look at it; asks torch for nothing.

torch converts the times of all entries anew at each snapshot, so that of an entry differs by some
microseconds from look to look: entries are told from others by what they say, and by the counters.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["Entry", "RingPosition", "new_entries", "operations_in"]

Entry: TypeAlias = "dict[str, Any]"

_TAIL = 8
"""Entries by which the end of the last look is found again."""
_TOLERANCE_US = 1000
"""An entry's time differs by less between two looks."""
_FIRST_TOLERANCE_US = 100
"""The same between torch's clock and ours, as long as no entry is known."""
_WEIGHT = {"alloc": 1, "free_requested": 2}
"""What the counters of the allocator account for: one an allocation, two a free."""


@dataclass(frozen=True, slots=True)
class RingPosition:
    """One device's ring at the last look; for the first one only the time since which is asked."""

    last_us: int = 0
    length: int = 0
    head: tuple[Any, ...] | None = None
    tail: tuple[tuple[Any, ...], ...] = ()
    """The last entries, the latest first."""

    @staticmethod
    def of(ring: Sequence[Entry]) -> RingPosition:
        """Of entries in the order of their times; where there are none, all that come are new."""
        if not ring:
            return RingPosition()
        tail = tuple(map(_identity, reversed(ring[-_TAIL:])))
        return RingPosition(ring[-1]["time_us"], len(ring), _identity(ring[0]), tail)

    def is_start_of(self, ring: Sequence[Entry]) -> bool:
        """Whether a ring may still hold all that was seen, as far as its first entry tells."""
        return not self.length or (len(ring) >= self.length and self.head == _identity(ring[0]))


def new_entries(
    position: RingPosition, ring: Sequence[Entry], least: int, most: int
) -> list[Entry]:
    """Those of the entries, which are in the order of their times, that are new since a look.

    Allocations and frees among them make ``least`` to ``most`` operations, by the counters; where
    they make fewer, entries were dropped that nobody has seen.
    """
    if position.length and position.is_start_of(ring) and _ends(position, ring, position.length):
        new_tail = list(ring[position.length :])
        if least <= operations_in(new_tail) <= most:
            return new_tail
    place = _end_of(position, ring, least, most)
    return [] if place is None else list(ring[place:])


def operations_in(entries: Sequence[Entry]) -> int:
    """What the counters of the allocator account for among some entries."""
    return sum(_WEIGHT.get(entry["action"], 0) for entry in entries)


def _end_of(position: RingPosition, ring: Sequence[Entry], least: int, most: int) -> int | None:
    """The first place after what the last look had; None where that is not found.

    Of several (a loop does the same in every turn) the one that agrees best with the counters,
    then with the time.
    """
    times = [entry["time_us"] for entry in ring]
    tolerance_us = _TOLERANCE_US if position.tail else _FIRST_TOLERANCE_US
    first = bisect_left(times, position.last_us - tolerance_us)
    last = bisect_right(times, position.last_us + tolerance_us)
    operations = operations_in(ring[last:])
    candidates: list[tuple[int, int, int]] = []
    for place in range(last, first - 1, -1):
        operations += _WEIGHT.get(ring[place]["action"], 0) if place < last else 0
        if _ends(position, ring, place):
            unlike = max(least - operations, operations - most, 0)
            candidates.append((unlike, _distance_us(position, times, place), place))
    return min(candidates)[2] if candidates else None


def _ends(position: RingPosition, ring: Sequence[Entry], place: int) -> bool:
    """Whether the entries before a place are the last ones that were seen, as far as they go."""
    return all(
        earlier == _identity(ring[place - 1 - back])
        for back, earlier in enumerate(position.tail)
        if back < place
    )


def _distance_us(position: RingPosition, times: Sequence[int], place: int) -> int:
    if position.tail:
        return abs(times[place - 1] - position.last_us) if place else _TOLERANCE_US
    before = max(times[place - 1] - position.last_us, 0) if place else 0
    return before + (max(position.last_us - times[place], 0) if place < len(times) else 0)


def _identity(entry: Entry) -> tuple[Any, ...]:
    get = entry.get
    return entry["action"], get("addr"), get("device_free"), get("size"), get("stream")
