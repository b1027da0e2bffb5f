"""The Python stack of the calling thread as a row of the interned table, cheaply and often."""

from __future__ import annotations

from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from memprof.sources.boundaries import Call
from memprof.sources.protocol import Interner
from memprof.trace import EMPTY

__all__ = ["StackCapture"]

_DEPTH = 64
_PACKAGE = str(Path(__file__).resolve().parent.parent)
_HIDDEN = (_PACKAGE + "/", _PACKAGE + "\\")


class StackCapture:
    """Interns stacks, innermost frame first, without frames of memprof.

    The frames outside a module call do not move while it lasts, so that they are walked once a call
    and not once an event; a stack whose frames are known costs about 0.1 µs a frame.
    """

    def __init__(self, interner: Interner) -> None:
        self._interner = interner
        self._frames: dict[tuple[int, int], tuple[CodeType, int]] = {}
        self._stacks: dict[tuple[Any, ...], int] = {}
        self._members: dict[int, tuple[int, ...]] = {EMPTY: ()}

    def capture(self, frame: FrameType | None, call: Call | None) -> int:
        """Row of the stack that begins with ``frame``, inside the innermost module ``call``."""
        outside = call.frame_id if call is not None else 0
        key: list[Any] = []
        frames: list[FrameType] = []
        while frame is not None and id(frame) != outside:
            key += (id(frame.f_code), frame.f_lasti)
            frames.append(frame)
            frame = frame.f_back
        outer = EMPTY
        if frame is not None and call is not None:
            outer = call.site
            if outer is None:
                outer = call.site = self.capture(frame, None)
        key.append(outer)
        exact = tuple(key)
        row = self._stacks.get(exact)
        if row is None:
            row = self._stacks[exact] = self._intern(frames, outer)
        return row

    def _intern(self, frames: list[FrameType], outer: int) -> int:
        rows = [row for row in map(self._frame, frames) if row >= 0]
        members = (*rows, *self._members[outer])
        row = self._interner.stack(members[:_DEPTH])
        self._members.setdefault(row, members)
        return row

    def _frame(self, frame: FrameType) -> int:
        code = frame.f_code
        key = (id(code), frame.f_lasti)
        known = self._frames.get(key)
        if known is None:
            # The code object is kept so that its id stays its own.
            known = self._frames[key] = (code, self._new_frame(frame, code))
        return known[1]

    def _new_frame(self, frame: FrameType, code: CodeType) -> int:
        if code.co_filename.startswith(_HIDDEN):
            return -1
        name = getattr(code, "co_qualname", code.co_name)
        return self._interner.frame(name, code.co_filename, frame.f_lineno or 0)
