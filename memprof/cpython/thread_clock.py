"""The processor's time that this thread has used, by which a recording counts what it costs."""

from __future__ import annotations

import time
from itertools import pairwise

__all__ = ["READING_NS", "thread_ns", "thread_us"]


def thread_ns() -> int:
    """Nanoseconds of the processor that the calling thread has used.

    Not the clock on the wall: on a busy machine that also counts what other programs do while the
    thread waits for its turn, which slows the job's own work as much as ours.
    """
    return time.thread_time_ns()


def thread_us() -> float:
    """The same in microseconds."""
    return thread_ns() / 1000


def _reading_ns() -> int:
    """What one reading adds to the time between two of them: the least of a few."""
    readings = [thread_ns() for _ in range(16)]
    return max(0, min(after - before for before, after in pairwise(readings)))


READING_NS = _reading_ns()
"""Nanoseconds that a reading of this clock takes itself; it asks the kernel, some 0.5 µs."""
