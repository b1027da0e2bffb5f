"""What runs in a thread at this moment: module calls, optimizer steps, a backward pass."""

from __future__ import annotations

import sys
import threading
from typing import Any

__all__ = ["NO_TASK", "Call", "Stepping", "ThreadState", "call_frame", "drop_ended"]

LOG_LIMIT = 100_000
"""Entries of a thread's log of sequence numbers; a graph that is older loses its modules."""
NO_TASK = -1
"""The id of autograd's graph task outside a backward pass."""


class Call:
    """A module call that is under way in a thread."""

    __slots__ = ("frame_id", "module_id", "path", "site", "task")

    def __init__(self, module_id: int, path: str, task: int, frame_id: int) -> None:
        self.module_id = module_id
        self.path = path
        self.task = task
        """The autograd graph task that it runs in; -1 outside a backward pass."""
        self.frame_id = frame_id
        """``id`` of the frame that stays where it is while the call lasts."""
        self.site: Any = None
        """What the stack capture keeps about the frames outside the call."""


class Stepping:
    """An optimizer's step that is under way."""

    __slots__ = ("depth", "frame_id", "task")

    def __init__(self, task: int, depth: int, frame_id: int) -> None:
        self.task = task
        self.depth = depth
        """Module calls that were under way when it began."""
        self.frame_id = frame_id


class ThreadState(threading.local):
    """What runs in one thread."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.optimizers: list[Stepping] = []
        self.after_forward = False
        self.backward = False
        self.backward_path = ""
        self.numbers: list[int] = []
        self.paths: list[str] = []

    def log(self, number: int, path: str) -> tuple[list[int], list[str]]:
        """Nodes of the graph that carry ``number`` or more belong to ``path``."""
        numbers, paths = self.numbers, self.paths
        if numbers and numbers[-1] == number:
            paths[-1] = path
            return numbers, paths
        if len(numbers) >= LOG_LIMIT:
            del numbers[: LOG_LIMIT // 2], paths[: LOG_LIMIT // 2]
        numbers.append(number)
        paths.append(path)
        return numbers, paths


def drop_ended(steppings: list[Stepping]) -> None:
    """Forget optimizer steps that an exception ended: torch calls no hook then."""
    if not steppings:
        return
    running = set()
    frame = sys._getframe(1)
    while frame is not None:
        running.add(id(frame))
        frame = frame.f_back  # type: ignore[assignment]
    steppings[:] = [s for s in steppings if s.frame_id in running]


def call_frame(frame: Any) -> Any:
    """The frame of ``Module._call_impl``, from one inside it."""
    while frame.f_back is not None and frame.f_code.co_name == "inner":
        frame = frame.f_back
    return frame
