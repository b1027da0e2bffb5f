"""Tells that the program runs code of its own which no window has recorded, as an evaluation is."""

from __future__ import annotations

from itertools import islice
from types import FrameType

from memprof.sources.protocol import Interner
from memprof.sources.user_files import is_user_file

__all__ = ["UnseenCode"]

_Function = tuple[str, str]
"""A name and a file."""


class UnseenCode:
    """Compares the functions that run with those on the stacks that were recorded.

    A function says more than a line, of which many allocate nothing: lines count where the same
    function is at such twice in a row, as the second loop of a long function is, and once only.
    """

    def __init__(self, interner: Interner) -> None:
        """``interner`` has the frames of all that was recorded."""
        self._interner = interner
        self._frames_read = 0
        self._known: set[_Function] = set()
        """Functions of the program that were recorded, or told of."""
        self._told: set[_Function] = set()
        self._at_new_lines: set[_Function] = set()
        """Functions that were at a line without an allocation when this was last asked."""

    def is_running(self, frame: FrameType | None) -> bool:
        """Whether ``frame``, or one that called it, runs what was neither recorded nor told of."""
        self._read_frames()
        functions: set[_Function] = set()
        at_new_lines: set[_Function] = set()
        while frame is not None:
            code = frame.f_code
            if is_user_file(code.co_filename):
                name = getattr(code, "co_qualname", code.co_name)
                functions.add((name, code.co_filename))
                if not self._interner.has_frame(name, code.co_filename, frame.f_lineno or 0):
                    at_new_lines.add((name, code.co_filename))
            frame = frame.f_back
        again = (at_new_lines & self._at_new_lines) - self._told
        self._at_new_lines = at_new_lines
        are_new = functions - self._known
        self._known |= are_new
        self._told |= are_new | again
        return bool(are_new or again)

    def _read_frames(self) -> None:
        """Take in the functions of the frames that were recorded since the last time."""
        frames = self._interner.frame_rows
        recorded = list(islice(frames, self._frames_read, None))
        self._frames_read += len(recorded)
        self._known.update((name, filename) for name, filename, _ in recorded)
