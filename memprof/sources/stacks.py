"""The Python stack of the calling thread as a row of the interned table, cheaply and often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from memprof.sources.loop.thread_state import ThreadPosition
from memprof.sources.protocol import Interner
from memprof.trace import EMPTY

__all__ = ["StackCapture", "is_own", "recorded_frames"]

_DEPTH = 64
"""Frames of a stack that are recorded, the innermost first."""
_MOST_ALIKE = 8
"""Of those at one line of a stack that is deeper: what calls itself says no more each time. Modules
within one another come by the same lines of torch's as well, and how many there are tells of which
one a line is."""
_PACKAGE = str(Path(__file__).resolve().parent.parent)
_HIDDEN = (_PACKAGE + "/", _PACKAGE + "\\")


def is_own(filename: str) -> bool:
    """Whether a file is memprof's: its frames are no part of the program's stacks."""
    return filename.startswith(_HIDDEN)


def recorded_frames(rows: Sequence[int]) -> tuple[int, ...]:
    """The rows of frames that are recorded of a stack, the innermost first.

    Where it is too deep, `copy.deepcopy` of a deep structure for one, functions that call
    themselves are in it a few times, so that the program's lines further out are not cut off.
    """
    if len(rows) <= _DEPTH:
        return tuple(rows)
    times: Counter[int] = Counter()
    shorter: list[int] = []
    for row in rows:
        times[row] += 1
        if times[row] <= _MOST_ALIKE:
            shorter.append(row)
    return tuple(shorter[:_DEPTH])


class StackCapture:
    """Interns stacks, innermost frame first, without frames of memprof.

    The frames outside a module call, an optimizer's step or a backward pass do not move while it
    lasts: they are walked once for all of its events, and only as far as the next place outwards.
    A stack whose frames are known costs about 0.1 µs for each of the others.
    """

    def __init__(self, interner: Interner) -> None:
        self._interner = interner
        self._frames: dict[tuple[int, int], tuple[CodeType, int]] = {}
        self._stacks: dict[tuple[Any, ...], int] = {}
        self._members: dict[int, tuple[int, ...]] = {EMPTY: ()}

    def capture(self, frame: FrameType | None, place: ThreadPosition | None) -> int:
        """Row of the stack that begins with ``frame``; ``place`` is where its thread is."""
        steady = place.frame_id if place is not None else 0
        key: list[Any] = []
        innermost = frame
        while frame is not None and id(frame) != steady:
            key += (id(frame.f_code), frame.f_lasti)
            frame = frame.f_back
        outer = EMPTY
        if frame is not None and place is not None:
            site = place.site
            outer = self._site(frame, place) if site is None else site
        key.append(outer)
        exact = tuple(key)
        row = self._stacks.get(exact)
        if row is None:
            row = self._stacks[exact] = self._intern(innermost, frame, outer)
        return row

    def _site(self, frame: FrameType, place: ThreadPosition) -> int:
        place.site = row = self.capture(frame, place.outer)
        return row

    def _intern(self, frame: FrameType | None, end: FrameType | None, outer: int) -> int:
        rows = []
        while frame is not None and frame is not end:
            row = self._frame(frame)
            if row >= 0:
                rows.append(row)
            frame = frame.f_back
        members = (*rows, *self._members[outer])
        row = self._interner.stack(recorded_frames(members))
        self._members.setdefault(row, members)
        return row

    def _frame(self, frame: FrameType) -> int:
        code = frame.f_code
        key = (id(code), frame.f_lasti)
        entry = self._frames.get(key)
        if entry is None:
            # The code object is kept so that its id stays its own.
            entry = self._frames[key] = (code, self._new_frame(frame, code))
        return entry[1]

    def _new_frame(self, frame: FrameType, code: CodeType) -> int:
        if is_own(code.co_filename):
            return -1
        name = getattr(code, "co_qualname", code.co_name)
        return self._interner.frame(name, code.co_filename, frame.f_lineno or 0)
