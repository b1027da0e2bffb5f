"""Identification of the thread that made an allocation, by the outermost frames of its stack."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

__all__ = ["NO_ENTRY", "Entry", "entry_here", "entry_of"]

Entry = tuple[str, str]
"""File and name of the function that a thread of `threading` was made to run."""
NO_ENTRY: Entry = ("", "")
"""Of the main thread, of autograd's own, and of any other that `threading` did not start."""

_FILE = threading.Thread.run.__code__.co_filename
_FIRST = "_bootstrap"


def entry_of(stack: Sequence[Entry]) -> Entry:
    """The entry of the thread that a stack is of, from its functions, innermost first.

    Every thread of `threading` begins in ``Thread._bootstrap``, whatever class or pool it is of.
    """
    if not stack or stack[-1][0] != _FILE or not stack[-1][1].endswith(_FIRST):
        return NO_ENTRY
    return next((place for place in reversed(stack) if place[0] != _FILE), stack[-1])


def entry_here() -> Entry:
    """The entry of the calling thread."""
    stack = []
    frame = sys._getframe(1)
    while frame is not None:
        stack.append((frame.f_code.co_filename, frame.f_code.co_name))
        frame = frame.f_back  # type: ignore[assignment]
    return entry_of(stack)
