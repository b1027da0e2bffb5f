"""Whose line a stack belongs to: the user's own frame first, torch's and other libraries' folded.

Only names and paths are looked at, so stacks recorded on another machine or system read the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.trace import Frame, Tables

__all__ = ["NO_SITE", "NO_STACK", "Sites", "library_frame", "short_path", "site_name", "sites"]

NO_SITE = Frame("", "", 0)
"""The site of an event whose stack was not recorded."""
NO_STACK = "(no stack recorded)"
"""Its name."""

_NATIVE_NOISE = re.compile(
    r"unwind|CapturedTraceback|gather_with_cpp|CachingAllocator|::malloc|raw_alloc|"
    r"^c10::|StorageImpl|at::detail::empty|empty_generic|_empty_|empty_cuda|empty_strided|"
    r"wrap_kernel|wrapper_CUDA|KernelFunction|Dispatcher|::redispatch|^_?_?(start|libc)|^\[unknown\]|"
    r"execute_native_thread_routine|clone_obey_contract"
)
_NATIVE_TELLING = re.compile(r"^torch::autograd::generated::\w+::|^at::_ops::\w+::call")
_BACKWARD_NODE = re.compile(r"^torch::autograd::generated::(\w*Backward\d*)::apply")
"""A node of autograd's graph: its name is the forward operator's, of which no line is recorded in
the thread of a backward pass."""
_ARGUMENTS = re.compile(r"\((?!anonymous).*$")
_EXECUTED = "<string>"
"""Text given to `exec` (and what dataclasses make): the line that runs it can be read."""


@dataclass(frozen=True, slots=True, eq=False)
class Sites:
    """The distinct sites of a run's stacks."""

    frames: tuple[Frame, ...]
    """Entry 0 is `NO_SITE`."""
    of_stack: npt.NDArray[np.int32]
    """Index into ``frames`` for every stack of the tables."""


def sites(tables: Tables) -> Sites:
    """The site of every stack: its innermost user frame, else the best of what is not hidden."""
    rows = np.zeros(len(tables.stacks), dtype=np.int32)
    index: dict[Frame, int] = {NO_SITE: 0}
    kinds = [_rank(frame) for frame in tables.frames]
    for number, stack in enumerate(tables.stacks):
        # max() keeps the first of equals: the innermost
        best = max(stack, key=kinds.__getitem__) if stack else None
        if best is not None and kinds[best] > FrameKind.HIDDEN:
            rows[number] = index.setdefault(tables.frames[best], len(index))
    return Sites(tuple(index), rows)


def _rank(frame: Frame) -> float:
    kind = frame_kind(frame.filename)
    if kind is FrameKind.NATIVE:
        if _BACKWARD_NODE.search(frame.name):
            return 1.75
        if _NATIVE_TELLING.search(frame.name):
            return 1.5
        return 0.5 if _NATIVE_NOISE.search(frame.name) else 1.0
    if frame.filename == _EXECUTED:
        return kind - 0.5
    return float(kind)


def library_frame(stack: Sequence[Frame]) -> Frame | None:
    """The innermost frame of a library below the user's line: where that line calls a framework.

    None where the user's own code called torch, or where no library is in between.
    """
    for frame in stack:
        kind = frame_kind(frame.filename)
        if kind in {FrameKind.USER, FrameKind.LIBRARY}:
            return frame if kind is FrameKind.LIBRARY else None
    return None


def short_path(filename: str, parts: int = 2) -> str:
    """The last components of a path of either system: ``models/gpt.py``."""
    return "/".join(filename.replace("\\", "/").split("/")[-parts:])


def site_name(frame: Frame) -> str:
    """``train.py:31 in main``; for C++ the function alone; for no stack ``(no stack recorded)``.

    For a backward pass without a line, autograd's node: ``BmmBackward0 (backward pass)``.
    """
    if frame == NO_SITE:
        return NO_STACK
    node = _BACKWARD_NODE.search(frame.name)
    if node is not None:
        return f"{node[1]} (backward pass)"
    if frame_kind(frame.filename) is FrameKind.NATIVE:
        return _ARGUMENTS.sub("", frame.name) or "(native code)"
    return f"{short_path(frame.filename)}:{frame.line} in {frame.name}"
