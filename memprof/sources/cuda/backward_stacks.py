"""The line that asked for a backward pass, for what autograd's own threads allocate in one.

A device's part of a backward pass runs in a thread of autograd's that has no Python frames, so
torch's recorder has no stack for it. The thread that asked for the pass has one, and waits.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np

from memprof.sources.loop.loop_watch import LoopWatch
from memprof.sources.loop.thread_state import NO_TASK
from memprof.sources.protocol import Interner
from memprof.sources.stacks import StackCapture
from memprof.trace import EMPTY, NOT_RECORDED, Column

__all__ = ["BackwardStacks"]

_NOT_OVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class _Pass:
    """One backward pass; times are in microseconds since the Unix epoch, as the events' are."""

    began_us: int
    ended_us: int
    stack: int
    is_inner: bool
    """Whether it was asked for within another one, by a custom function or a hook."""


class BackwardStacks:
    """When backward passes ran, and the rows of the stacks that asked for them."""

    def __init__(self, interner: Interner, loop_watch: LoopWatch) -> None:
        """Nothing is followed before `start`."""
        import torch

        self._capture = StackCapture(interner)
        self._loop_watch = loop_watch
        self._hooks: ExitStack | None = None
        graph_task = getattr(torch._C, "_current_graph_task_id", None)
        self._graph_task: Callable[[], int] = graph_task or (lambda: NO_TASK)
        self._under_way: dict[int, list[_Pass]] = {}
        """Of each thread the passes that it waits for, the innermost last."""
        self._over: list[_Pass] = []
        """By their ends, as far as threads do not overtake one another."""

    def start(self) -> None:
        """Follow every backward pass that Python asks for from now on."""
        self.stop()
        self._under_way, self._over = {}, []
        self._hooks = ExitStack()
        for calls, call in (
            (self._loop_watch.on_pass, self._began),
            (self._loop_watch.on_pass_over, self._ended),
        ):
            calls.append(call)
            self._hooks.callback(calls.remove, call)

    def stop(self) -> None:
        """Follow no more; those that were seen stay known. Safe to call twice."""
        hooks, self._hooks = self._hooks, None
        if hooks is not None:
            hooks.close()

    def forget_before(self, time_us: int) -> None:
        """Drop passes that were over by then; other threads may add some meanwhile."""
        over = [*self._over]
        del self._over[
            : next((n for n, one in enumerate(over) if one.ended_us >= time_us), len(over))
        ]

    def fill(self, stack: Column, time_us: Column, in_pass: Column) -> Column:
        """The rows of stacks, with those of the pass where there is none: shapes ``(n,)`` all.

        ``in_pass`` says which events may be of a backward pass. Where passes that different lines
        asked for ran side by side, nobody knows which one it was.
        """
        bare = np.flatnonzero((stack == EMPTY) & in_pass)
        passes = [*self._over]
        for waiting in tuple(self._under_way.values()):
            passes += [replace(one, ended_us=_NOT_OVER) for one in tuple(waiting)]
        if not len(bare) or not passes:
            return stack
        filled: Column = stack.copy()
        times = time_us[bare]
        rows = np.full(len(bare), EMPTY, dtype=stack.dtype)
        is_unclear = np.zeros(len(bare), dtype=np.bool_)
        for one in sorted(passes, key=attrgetter("began_us")):
            within = (times >= one.began_us) & (times <= one.ended_us)
            if not one.is_inner:
                is_unclear |= within & (rows != EMPTY) & (rows != one.stack)
            rows[within] = one.stack
        rows[is_unclear] = EMPTY
        filled[bare] = rows
        return filled

    def _began(self) -> None:
        row = self._capture.capture(sys._getframe(1), None)
        is_inner = self._graph_task() != NO_TASK
        passes = self._under_way.setdefault(threading.get_ident(), [])
        passes.append(_Pass(_now_us(), NOT_RECORDED, row, is_inner))

    def _ended(self) -> None:
        passes = self._under_way.get(threading.get_ident())
        if passes:
            self._over.append(replace(passes.pop(), ended_us=_now_us()))


def _now_us() -> int:
    return time.time_ns() // 1000
