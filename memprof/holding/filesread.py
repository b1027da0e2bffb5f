"""Indices of the user's files: remembered, and made only while there is time; reads no line."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from memprof.holding.heap import Deadline
from memprof.holding.sourceindex import Index, read_index

__all__ = ["forget", "index_of", "reading_until"]

_MOST = 256
"""Files that are remembered: several times those that one search looks through."""

_known: dict[str, Index] = {}
_thread = threading.local()


@contextmanager
def reading_until(deadline: Deadline) -> Iterator[None]:
    """In this thread, no file is read any more once the time is over; what is known still is."""
    _thread.deadline = deadline
    try:
        yield
    finally:
        _thread.deadline = None


def forget() -> None:
    """Read every file again that is asked for from now on."""
    _known.clear()


def index_of(filename: str) -> Index:
    """The index of a file, as `read_index` makes it; empty where the time is over for that."""
    index = _known.get(filename)
    if index is not None:
        return index
    deadline: Deadline | None = getattr(_thread, "deadline", None)
    if deadline is not None and deadline.check():
        return Index()
    while len(_known) >= _MOST:
        _known.pop(next(iter(_known)), None)
    index = _known[filename] = read_index(filename)
    return index
