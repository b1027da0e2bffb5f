"""The line of the program on whose behalf torch asks the library that stands in for CUDA."""

from __future__ import annotations

import os
from pathlib import Path
from types import FrameType

from memprof.source_code.frame_kind import FrameKind, frame_kind

__all__ = ["frame_of_the_program"]

_OURS = str(Path(__file__).resolve().parents[1]) + os.sep


def frame_of_the_program(frame: FrameType | None) -> FrameType | None:
    """The innermost frame of the program's own; else of a library that it uses.

    None where torch alone asks: in threads of autograd, or for a check of its own.
    """
    library = None
    while frame is not None:
        if frame.f_code.co_filename.startswith(_OURS):
            frame = frame.f_back
            continue
        kind = frame_kind(frame.f_code.co_filename)
        if kind is FrameKind.USER:
            return frame
        if kind is FrameKind.LIBRARY and library is None:
            library = frame
        frame = frame.f_back
    return library
