"""Tells that the program runs code of its own which no window has recorded, as an evaluation is."""

from __future__ import annotations

from itertools import islice
from types import FrameType

from memprof.sources.protocol import Interner
from memprof.sources.user_files import is_user_file

__all__ = ["UnseenCode"]

_Function = tuple[str, str]
"""A name, without its class, and a file: torch's recorder names functions so."""


class UnseenCode:
    """Compares the functions that run with those on the stacks that were recorded.

    Of a function that was recorded, lines that were not count where it is at such twice in a row,
    as in its second loop: many lines allocate nothing. Either counts once for each function.
    """

    def __init__(self, interner: Interner) -> None:
        """``interner`` has the frames of all that was recorded."""
        self._interner = interner
        self._frames_read = 0
        self._known: set[_Function] = set()
        """Functions of the program that were recorded, or that `is_running` was true for."""
        self._reported: set[_Function] = set()
        """Those that it was true for, which it is once for each."""
        self._lines: set[tuple[str, int]] = set()
        """Files and lines that were recorded."""
        self._at_new_lines: set[_Function] = set()
        """Functions that were at a line without an allocation when this was last asked."""

    def is_running(self, frame: FrameType | None) -> bool:
        """Whether ``frame``, or one that called it, runs what was not recorded; once for it."""
        self._read_frames()
        functions: set[_Function] = set()
        at_new_lines: set[_Function] = set()
        while frame is not None:
            code = frame.f_code
            if is_user_file(code.co_filename):
                function = code.co_name, code.co_filename
                functions.add(function)
                if (code.co_filename, frame.f_lineno or 0) not in self._lines:
                    at_new_lines.add(function)
            frame = frame.f_back
        again = (at_new_lines & self._at_new_lines) - self._reported
        self._at_new_lines = at_new_lines
        are_new = functions - self._known
        self._known |= are_new
        self._reported |= are_new | again
        return bool(are_new or again)

    def _read_frames(self) -> None:
        """Take in the frames that were recorded since the last time."""
        frames = self._interner.frame_rows
        recorded = list(islice(frames, self._frames_read, None))
        self._frames_read += len(recorded)
        self._known.update((name.rpartition(".")[2], filename) for name, filename, _ in recorded)
        self._lines.update((filename, line) for _, filename, line in recorded)
