"""Signals whose handler raises, at exactly one of the moments at which Python looks for signals."""

from __future__ import annotations

import _thread
import itertools
import signal
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType

__all__ = ["Alarm", "alarms", "as_it_dies", "at_call"]

NUMBER = signal.SIGALRM


class Alarm(Exception):
    """What the program's handler raises."""


def _raise(_number, _frame):
    raise Alarm


@contextmanager
def alarms() -> Iterator[None]:
    """Inside, the handler of the signal raises `Alarm`."""
    before = signal.signal(NUMBER, _raise)
    try:
        yield
    finally:
        signal.signal(NUMBER, before)


@contextmanager
def at_call(number: int, within: CodeType) -> Iterator[list[int]]:
    """Send the signal at the n-th moment within a function: as it calls one of Python's, or is back.

    It gives a list that has one entry if there was such a moment.
    """
    moments, reached = itertools.count(), []

    def look(frame, event, _argument):
        is_within = frame.f_back is not None and frame.f_back.f_code is within
        at_python = event in ("call", "return") and is_within
        if (at_python or (event == "c_return" and frame.f_code is within)) and next(
            moments
        ) == number:
            reached.append(number)
            sys.setprofile(None)
            signal.raise_signal(NUMBER)

    sys.setprofile(look)
    try:
        yield reached
    finally:
        sys.setprofile(None)


class _Trip(weakref.ref):  # type: ignore[type-arg]
    __index__ = itertools.repeat(int(NUMBER)).__next__


class _Mortal:
    pass


def as_it_dies(before: list[object]) -> Callable[[], None]:
    """What drops all that is in a list after the signal has come, without Python's running between.

    So the handler is due in the first function of Python's that is called for what dies.
    """
    last = _Mortal()
    trip = _Trip(last, _thread.interrupt_main)  # in C: a weak reference is a number, the signal's
    items = [trip, *before, last]
    before.clear()
    del last
    return items.clear
