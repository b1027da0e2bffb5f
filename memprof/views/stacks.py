"""Tensors by the functions that made them."""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from memprof.trace import EMPTY, Frame
from memprof.views.window import Bools, Ints, Window

__all__ = ["made_at_lines", "made_by_lines", "made_likewise", "made_through"]


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


def made_likewise(window: Window, rows: Bools | Ints) -> Bools:
    """Whether each lifetime was made as some were, from the program's own line on inwards.

    Whoever called the function that the line is in: a change to the line is one for all callers.
    """
    stacks = window.lives.stack
    ways = {_inside(window, one) for one in np.unique(stacks[rows]).tolist() if one != EMPTY}
    of_sites = np.unique(stacks[np.isin(window.site, window.site[rows])]).tolist()
    alike = [one for one in of_sites if one != EMPTY and _inside(window, one) in ways]
    likewise: Bools = np.isin(stacks, alike)
    return likewise


def _inside(window: Window, number: int) -> tuple[Frame, ...]:
    """A stack up to the first line of the program; all of it where there is none."""
    stack = window.trace.stack(number)
    own = window.user_frames(stack)
    return stack[: stack.index(own[0]) + 1] if own else stack
