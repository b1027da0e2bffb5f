"""What runs in a thread at this moment: module calls, optimizer steps, a backward pass."""

from __future__ import annotations

import re
import sys
import threading
from types import CodeType, FrameType
from typing import Any

from memprof.cpython.frame_locals import frame_variable
from memprof.trace import EMPTY, NOT_RECORDED, THREAD, Phase

__all__ = [
    "NO_TASK",
    "BackwardPass",
    "Call",
    "Stepping",
    "ThreadPosition",
    "ThreadState",
    "Threads",
    "call_frame",
    "drop_ended",
    "engine_codes",
    "frame_of",
    "keywords_of",
]

LOG_LIMIT = 100_000
"""Entries of a thread's log of sequence numbers; a graph that is older loses its modules."""
NO_TASK = -1
"""The id of autograd's graph task outside a backward pass."""
_NUMBERS = re.compile(r"[-_]?\d+")
_NO_NUMBER = -2
"""Nodes are numbered from 0, and no node at all is -1."""


class ThreadPosition:
    """Where a thread is, for as long as its phase and its module stay the same.

    The label and the frames outside are looked up once a place and not once an event.
    """

    __slots__ = ("annotation", "frame_id", "outer", "path", "phase", "row", "site", "step", "task")

    def __init__(self, phase: Phase, path: str, task: int = NO_TASK, frame_id: int = 0) -> None:
        self.phase = phase
        self.path = path
        self.task = task
        """The autograd graph task that it runs in; -1 outside a backward pass."""
        self.frame_id = frame_id
        """``id`` of a frame that stays where it is while the thread is here, or 0."""
        self.outer: ThreadPosition | None = None
        """A place that the thread will be back in."""
        self.site: int | None = None
        """What the stack capture keeps about the frames from that one outwards."""
        self.row = EMPTY
        """The label's, in this step and under this annotation."""
        self.step = NOT_RECORDED
        self.annotation = ""


class Call(ThreadPosition):
    """A module call that is under way in a thread."""

    __slots__ = ("module_id",)

    def __init__(self, module_id: int, path: str, task: int, frame_id: int) -> None:
        # One is made for every call of a module: what `ThreadPosition` sets, without a call.
        self.phase = Phase.FORWARD if task == NO_TASK else Phase.BACKWARD
        self.path = path
        self.task = task
        self.frame_id = frame_id
        self.outer = self.site = None
        self.row = EMPTY
        self.step = NOT_RECORDED
        self.annotation = ""
        self.module_id = module_id


class Stepping(ThreadPosition):
    """An optimizer's step that is under way."""

    __slots__ = ("depth", "wrapper_id")

    def __init__(self, task: int, depth: int, wrapper_id: int, frame_id: int) -> None:
        super().__init__(Phase.OPTIMIZER, "", task, frame_id)
        self.depth = depth
        """Module calls that were under way when it began."""
        self.wrapper_id = wrapper_id
        """``id`` of the frame that calls the optimizer's hooks."""


class BackwardPass(ThreadPosition):
    """A backward pass; its path is the module of the graph's node that runs."""

    __slots__ = ("nodes", "number", "running")

    def __init__(self, path: str, task: int, frame_id: int) -> None:
        super().__init__(Phase.BACKWARD, path, task, frame_id)
        self.nodes = 0
        """How many nodes have been asked for."""
        self.number = _NO_NUMBER
        """The node's sequence number."""
        self.running = _NO_NUMBER
        """The same, also where a node accumulates gradients, which are not numbered in order."""


class ThreadState:
    """What runs in one thread."""

    __slots__ = (
        "after_forward",
        "backward",
        "called_at",
        "calls",
        "interruptions",
        "loop",
        "name",
        "newest_node",
        "numbers",
        "optimizers",
        "passed_at",
        "passes",
        "passes_newest",
        "passes_row",
        "passing",
        "paths",
        "untold_pass",
    )

    def __init__(self) -> None:
        self.name = _thread_name()
        """What names it in labels; empty for the main thread."""
        self.calls: list[Call] = []
        self.optimizers: list[Stepping] = []
        self.interruptions = 0
        """How often the hooks on modules had been away when the last call began."""
        self.after_forward = False
        self.called_at = self.passed_at = 0
        """Places (`CallPlaces`) of the last call of a module from outside, and backward pass."""
        self.passes_row = False
        """That pass was of another row of a Jacobian than the first."""
        self.passes = 0
        """Backward passes on autograd's own threads that had begun as the forward pass ended."""
        self.backward = False
        self.newest_node = -1
        """Number of the newest node of a graph when the last backward pass began."""
        self.passes_newest = False
        """The backward pass began at that node."""
        self.untold_pass = 0
        """The place of a pass that may have ended a step, if no optimizer steps for it."""
        self.passing = BackwardPass("", NO_TASK, 0)
        """The backward pass that ran last."""
        self.loop = ThreadPosition(Phase.OTHER, "")
        """Outside modules, optimizers and backward passes."""
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


def _thread_name() -> str:
    """The calling thread's name without the numbers that tell it from others of a pool."""
    ident = threading.get_ident()
    if ident == threading.main_thread().ident:
        return ""
    # Not `current_thread()`, which would make an object for a thread of C's.
    thread = threading._active.get(ident)  # type: ignore[attr-defined]
    return f"{THREAD}{_NUMBERS.sub('', thread.name)}" if thread is not None else ""


class Threads(threading.local):
    """The state of the calling thread. An attribute of a `threading.local` costs ten of others."""

    def __init__(self) -> None:
        self.state = ThreadState()


def drop_ended(steppings: list[Stepping]) -> None:
    """Forget optimizer steps that an exception ended: torch calls no hook then."""
    if not steppings:
        return
    running = set()
    frame = sys._getframe(1)
    while frame is not None:
        running.add(id(frame))
        frame = frame.f_back  # type: ignore[assignment]
    steppings[:] = [s for s in steppings if s.wrapper_id in running]


def call_frame(frame: Any) -> Any:
    """The frame of ``Module._call_impl``, from one inside it."""
    while frame.f_back is not None and frame.f_code.co_name == "inner":
        frame = frame.f_back
    return frame


def keywords_of(call: FrameType) -> dict[str, Any]:
    """The keyword arguments of a module's call, from the `call_frame`."""
    keywords = frame_variable(call, "kwargs")
    return keywords if isinstance(keywords, dict) else {}


def frame_of(codes: tuple[CodeType, ...], frame: FrameType | None) -> int:
    """``id`` of the innermost frame that runs one of ``codes``; 0 where there is none."""
    while frame is not None:
        if any(frame.f_code is code for code in codes):
            return id(frame)
        frame = frame.f_back
    return 0


def engine_codes(torch: Any) -> tuple[CodeType, ...]:
    """The functions of torch whose frames stay where they are while a backward pass runs."""
    runs = getattr(torch.autograd.graph, "_engine_run_backward", None)
    functions = (runs,) if runs is not None else (torch.autograd.backward, torch.autograd.grad)
    return tuple(f.__code__ for f in functions if hasattr(f, "__code__"))
