"""Loops of a program that were over before its recording was."""

from __future__ import annotations

import ast
from typing import TypeAlias

import numpy as np

from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.program import FUNCTIONS, LOOPS, place_of
from memprof.trace import EMPTY, Frame
from memprof.views.survivors import Survival

__all__ = ["loop_is_over"]

_Lines: TypeAlias = dict[tuple[str, str], set[int]]


def loop_is_over(survival: Survival, stack: int, place: int) -> bool:
    """Whether a loop around the calls of a stack did not run any more after a step's end.

    ``place`` is one of `Survival.steps`. The function with the loop must have run then still, at
    lines outside of it: a cache that is full stops to grow while its loop goes on.
    """
    lives = survival.lives
    # A step ends in the midst of a loop's body: the rest of the last one is in the step after.
    later = _lines(survival, np.unique(lives.stack[lives.allocated_in > place + 1]).tolist())
    for frame in survival.tables.stack(stack):
        lines = later.get((frame.filename, frame.name))
        loop = _outermost_loop(frame) if lines else None
        if lines and loop is not None:
            end = loop.end_lineno or loop.lineno
            if not any(loop.lineno <= line <= end for line in lines):
                return True
    return False


def _lines(survival: Survival, stacks: list[int]) -> _Lines:
    """The lines of the program on some stacks, by file and function."""
    lines: _Lines = {}
    frames = {frame for stack in stacks if stack != EMPTY for frame in survival.tables.stack(stack)}
    for frame in frames:
        lines.setdefault((frame.filename, frame.name), set()).add(frame.line)
    return lines


def _outermost_loop(frame: Frame) -> ast.stmt | None:
    """The outermost loop around a line of the program, in its own function."""
    if frame.changed or frame_kind(frame.filename) is not FrameKind.USER:
        return None
    place = place_of(frame)
    outermost = None
    for node in reversed((*place.around, place.statement) if place is not None else ()):
        if isinstance(node, FUNCTIONS):
            break
        outermost = node if isinstance(node, LOOPS) else outermost
    return outermost
