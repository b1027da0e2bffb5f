"""Places that a program calls models and backward passes from: the whole stack as one number."""

from __future__ import annotations

from collections.abc import Sequence
from types import CodeType, FrameType

from memprof.sources.user_files import is_user_file

__all__ = ["CallPlaces"]

_MOST_FRAMES = 100
"""A stack is followed so far; what is deeper recurses."""
_MOST_PLACES = 4096
_DERIVATIVES = "/torch/autograd/functional.py"
"""Where a call by the program makes many passes: one for each row of a Jacobian."""
_FRAMES_OF_PASS = 6
"""At most so many lie between such a function and autograd's engine."""
_THROUGH = ("/torch/nn/", "/torch/utils/", "/torch/_dynamo/", "/torch/autograd/")


class CallPlaces:
    """Gives the same number to every turn of a loop, and knows the line that it stands for."""

    def __init__(self) -> None:
        """None is known."""
        self._lines: dict[int, tuple[str, int]] = {}
        self._of_derivatives: set[int] = set()

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
                place = self.of_call(frame)
                if _is_within_derivative(frame):
                    self._of_derivatives.add(place)
                return place
            frame = frame.f_back
        return 0

    def is_of_derivative(self, place: int) -> bool:
        """Whether a backward pass of that place was one of many that a function of torch makes."""
        return place in self._of_derivatives

    def line(self, place: int) -> tuple[str, int]:
        """File and line of a place: the innermost of the program's own; ("", 0) if not known."""
        return self._lines.get(place, ("", 0))


def _is_within_derivative(frame: FrameType) -> bool:
    """Whether a function of torch's that makes many passes has made the one of ``frame``."""
    outer, frames_to_go = frame.f_back, _FRAMES_OF_PASS
    while outer is not None and frames_to_go:
        if outer.f_code.co_filename.replace("\\", "/").endswith(_DERIVATIVES):
            return True
        outer, frames_to_go = outer.f_back, frames_to_go - 1
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
