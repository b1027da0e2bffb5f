"""Tensors by the functions that made them."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from memprof.trace import Frame
from memprof.views.window import Bools, Window

__all__ = ["made_at_lines", "made_by_lines", "made_through"]


def made_through(window: Window, is_meant: Callable[[Frame], bool]) -> Bools:
    """Whether each lifetime of a window was made by a call that went through such a frame."""
    is_match = [is_meant(frame) for frame in window.trace.tables.frames]
    stacks = np.array([any(is_match[at] for at in stack) for stack in window.trace.tables.stacks])
    through: Bools = stacks[window.lives.stack]
    return through


def made_at_lines(window: Window, filename: str, lines: Collection[int]) -> Bools:
    """Whether the line of each lifetime, the one that reports name, is one of some."""
    frames = window.owners.sites.frames
    is_there = np.array([one.filename == filename and one.line in lines for one in frames])
    began_there: Bools = is_there[window.site]
    return began_there


def made_by_lines(window: Window, filename: str, lines: Collection[int]) -> Bools:
    """The same of frames at some lines of a file: there, or in a function called there."""
    return made_through(window, lambda frame: frame.filename == filename and frame.line in lines)
