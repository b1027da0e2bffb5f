"""Places that a program calls models and backward passes from: the whole stack as one number."""

from __future__ import annotations

from collections.abc import Sequence
from types import CodeType, FrameType

from memprof.cpython.frame_locals import frame_variable
from memprof.sources.user_files import is_user_file

__all__ = ["CallPlaces", "is_later_row"]

_MOST_FRAMES = 100
"""A stack is followed so far; what is deeper recurses."""
_MOST_PLACES = 4096
_DERIVATIVES = "/torch/autograd/functional.py"
_JACOBIAN = "jacobian"
"""The function there that makes a pass for each row, the rows of several results counted by …"""
_COUNTERS = ("i", "j")
"""… these variables of its (torch 2.4 to 2.15)."""
_FRAMES_OF_PASS = 12
"""At most so many lie between such a function and what is told of its passes."""
_THROUGH = ("/torch/nn/", "/torch/utils/", "/torch/_dynamo/", "/torch/autograd/")


class CallPlaces:
    """Gives the same number to every turn of a loop, and knows the line that it stands for."""

    def __init__(self) -> None:
        """None is known."""
        self._lines: dict[int, tuple[str, int]] = {}

    def of_call(self, frame: FrameType | None) -> int:
        """The number of the place that ``frame`` is at, which is never 0; 0 without a frame."""
        if frame is None:
            return 0
        place, frames_to_go = 1, _MOST_FRAMES
        outer: FrameType | None = frame
        while outer is not None and frames_to_go:
            place = hash((place, id(outer.f_code), outer.f_lasti))
            outer, frames_to_go = outer.f_back, frames_to_go - 1
        if place not in self._lines and len(self._lines) < _MOST_PLACES:
            self._lines[place] = _line(frame)
        return place

    def of_line(self, filename: str, line: int) -> int:
        """The number of a line, whoever called it; 0 without one."""
        if not filename:
            return 0
        place = hash((filename, line)) or 1
        if len(self._lines) < _MOST_PLACES:
            self._lines[place] = filename, line
        return place

    def of_backward(self, frame: FrameType | None, engine: Sequence[CodeType]) -> int:
        """The same of the call of autograd's engine that ``frame`` runs in; 0 on its own thread."""
        while frame is not None:
            if frame.f_code in engine:
                return self.of_call(frame)
            frame = frame.f_back
        return 0

    def line(self, place: int) -> tuple[str, int]:
        """File and line of a place: the innermost of the program's own; ("", 0) if not known."""
        return self._lines.get(place, ("", 0))


def is_later_row(frame: FrameType | None) -> bool:
    """Whether the pass that ``frame`` runs in is a Jacobian's, of another row than the first."""
    frames_to_go = _FRAMES_OF_PASS
    while frame is not None and frames_to_go:
        code = frame.f_code
        if code.co_name == _JACOBIAN and code.co_filename.replace("\\", "/").endswith(_DERIVATIVES):
            counts = [frame_variable(frame, name) for name in _COUNTERS]
            return all(type(one) is int for one in counts) and any(counts)
        frame, frames_to_go = frame.f_back, frames_to_go - 1
    return False


def _line(frame: FrameType) -> tuple[str, int]:
    """Of the innermost frame of the program's own files, else of the innermost outside torch."""
    first = None
    here: FrameType | None = frame
    while here is not None:
        name = here.f_code.co_filename
        if is_user_file(name):
            return name, here.f_lineno
        if first is None and not any(part in name for part in _THROUGH):
            first = name, here.f_lineno
        here = here.f_back
    return first or ("", 0)
