"""Loops of a program, and its training, that were over before its recording was."""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.joined_parts import outermost_loop
from memprof.trace import EMPTY, Phase
from memprof.views.survivors import Survival

__all__ = ["loop_is_over", "training_is_over"]

_Lines: TypeAlias = dict[tuple[str, str], set[int]]


def loop_is_over(survival: Survival, stack: int, place: int) -> bool:
    """Whether a loop around the calls of a stack did not run any more after a step's end.

    ``place`` is one of `Survival.steps`. A function around it must have run then still, at lines
    outside of the loop, or of the call that the loop was in: a cache that is full stops to grow
    while its loop goes on.
    """
    lives = survival.lives
    # A step ends in the midst of a loop's body: the rest of the last one is in the step after.
    later = _lines(survival, np.unique(lives.stack[lives.allocated_in > place + 1]).tolist())
    frames = [
        one for one in survival.tables.stack(stack) if frame_kind(one.filename) is FrameKind.USER
    ]
    for at in reversed(range(len(frames))):
        frame = frames[at]
        lines = later.get((frame.filename, frame.name))
        if not lines:
            return False
        loop = outermost_loop(frame)
        first, last = (loop.lineno, loop.end_lineno or 0) if loop else (frame.line, frame.line)
        if not any(first <= line <= last for line in lines):
            return any(outermost_loop(inner) is not None for inner in frames[: at + 1])
    return False


def training_is_over(survival: Survival, place: int) -> bool:
    """Whether no backward pass came after a step's end, where most steps before it have one.

    What is evaluated last counts as steps of its own, as there is nothing else to count.
    """
    learned = _learning_steps(survival)
    if not len(learned) or int(learned[-1]) > place + 1:
        return False
    return bool(2 * len(learned) > place)


@lru_cache(maxsize=1)  # asked for each group of allocations
def _learning_steps(survival: Survival) -> npt.NDArray[np.int64]:
    """Places of the steps in which a backward pass allocated something, in order."""
    lives = survival.lives
    phases = np.array([label.phase for label in survival.tables.labels])
    learned = (phases[lives.label] == Phase.BACKWARD) & (lives.allocated_in >= 0)
    steps: npt.NDArray[np.int64] = np.unique(lives.allocated_in[learned]).astype(np.int64)
    return steps


def _lines(survival: Survival, stacks: list[int]) -> _Lines:
    """The lines of the program on some stacks, by file and function."""
    lines: _Lines = {}
    frames = {frame for stack in stacks if stack != EMPTY for frame in survival.tables.stack(stack)}
    for frame in frames:
        lines.setdefault((frame.filename, frame.name), set()).add(frame.line)
    return lines
