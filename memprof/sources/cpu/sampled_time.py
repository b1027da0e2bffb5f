"""An estimate of the time that very many short calls take together: only some are timed."""

from __future__ import annotations

import itertools

from memprof.cpython.thread_clock import READING_NS, thread_ns

__all__ = ["SampledTime"]

_EVERY = 61
"""One call of so many is timed; a prime, so that a program with a period does not hide from it."""

_FAR, _USUAL_NS = 10, 100_000
"""A call that took so many times the mean was interrupted: by a collection of garbage."""


class SampledTime:
    """Adds up what is spent in a function of ours around a call of the program's.

    The function asks `began`, and where that is not 0 hands it to `pause` and `resume` just
    before and after the program's call, and what it gets to `end`.
    """

    def __init__(self, around_us: float) -> None:
        """``around_us`` is what each call costs outside the function: getting there and back."""
        self._around_us = around_us
        self._numbers = itertools.count(1)
        self._calls = 0
        self._own_ns = self._samples = 0

    def began(self) -> int:
        """The time, for one call in many; else 0."""
        return 0 if next(self._numbers) % _EVERY else thread_ns()

    def pause(self, began_ns: int) -> int:
        """The program's own call is about to run."""
        return began_ns - thread_ns()

    def resume(self, before_ns: int) -> int:
        """It has run."""
        return before_ns + thread_ns()

    def end(self, shifted_ns: int) -> None:
        """The function is about to return."""
        own_ns = max(0, thread_ns() - shifted_ns - 2 * READING_NS)  # it is read twice
        most_ns = _FAR * (self._own_ns // self._samples) if self._samples else own_ns
        self._own_ns += min(own_ns, max(most_ns, _USUAL_NS))
        self._samples += 1

    def take_us(self) -> float:
        """What all calls took since this was last asked, the program's own left out."""
        count = next(self._numbers) - 1 - self._calls
        self._calls += count + 1
        each_us = self._own_ns / self._samples / 1000 if self._samples else self._around_us
        return count * (self._around_us + each_us)
