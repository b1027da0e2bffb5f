"""What a step took of a device at the most, from the counters at its end."""

from __future__ import annotations

__all__ = ["most_taken"]


def most_taken(allocated: int, peak: int, inactive_split: int) -> int:
    """The most that a step took of a device: its peak, and the gaps that this did not fit into.

    Gaps are the inactive parts of segments that are in use (-1: not known); whole segments that are
    cached are given back before memory runs out.

    Args:
        allocated: bytes at the step's end.
        peak: the highest within it.
        inactive_split: bytes of gaps at its end, some of which it had used.
    """
    highest = max(peak, allocated)
    return highest + max(inactive_split - (highest - allocated), 0)
