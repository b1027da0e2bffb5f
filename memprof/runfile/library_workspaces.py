"""Workspaces that torch keeps for cuBLAS for good, told by their size and by what asked for them.

A product of matrices asks for one the first time that a thread multiplies on a stream. Nothing of
Python refers to it, so no look at the program's objects finds whose its bytes are. It is read where
a file is read, as with `memprof.runfile.parallel_owners`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from memprof.trace import EMPTY, Action, Category, Column, Frame, Phase, State, Trace

__all__ = ["LibraryWorkspaces"]

_OF_MOST_CARDS = (4096 * 2 + 16 * 8) << 10
"""Bytes by torch's default ``CUBLAS_WORKSPACE_CONFIG``, :4096:2:16:8 (``CUDABlas.cpp``): …"""
_OF_HOPPER = (4096 * 8) << 10
"""… :4096:8 on a Hopper, where cuBLASLt has one of that size, too. Others' tensors may be as large,
so it must have been a layer of torch's own that asked, or the backward pass."""
_ASKING = re.compile(r"/torch/(nn/(modules/linear|functional)|autograd/(__init__|graph))\.py$")
"""Files of the layers and of the functions that ask for a backward pass."""
_VAGUE = (int(Category.UNKNOWN), int(Category.ACTIVATION))
"""What a workspace of most cards may be taken for in the job; a Hopper's gives way where it is not
known alone, as an activation of a large layer may have its size."""
_MOST = 1 << 20
"""Of frames and of stacks that are kept in mind."""


class LibraryWorkspaces:
    """The stacks of a run in which torch itself multiplies; rows are added as its tables are."""

    def __init__(self) -> None:
        """No stack is known."""
        self._asking: set[int] = set()
        self._stacks: set[int] = set()

    def add(
        self,
        first_frame: int,
        frames: Iterable[Sequence[str | int] | Frame],
        first_stack: int,
        stacks: Iterable[Sequence[int]],
    ) -> None:
        """Note new rows of the tables; as `ParallelOwners.add`."""
        for row, frame in enumerate(frames, start=first_frame):
            if len(self._asking) < _MOST and _ASKING.search(str(frame[1]).replace("\\", "/")):
                self._asking.add(row)
        for row, stack in enumerate(stacks, start=first_stack):
            if stack and stack[0] in self._asking and len(self._stacks) < _MOST:
                self._stacks.add(row)

    def trace(self, trace: Trace) -> Trace:
        """The trace, with the workspaces among what was allocated and among the states' blocks."""
        backward = np.array([label.phase == Phase.BACKWARD for label in trace.tables.labels], bool)
        events = trace.events
        made = events.action == Action.ALLOC
        category = self.categories(
            events.category, events.size, events.stack, backward[events.label]
        )
        return replace(
            trace,
            events=replace(events, category=np.where(made, category, events.category)),
            start=self._state(trace.start, backward),
            end=self._state(trace.end, backward),
        )

    def _state(self, state: State | None, backward: npt.NDArray[np.bool_]) -> State | None:
        if state is None:
            return None
        blocks = state.blocks
        category = self.categories(
            blocks.category, blocks.size, blocks.stack, backward[blocks.label]
        )
        return replace(state, blocks=replace(blocks, category=category))

    def categories(
        self, category: Column, size: Column, stack: Column, backward: npt.NDArray[np.bool_]
    ) -> Column:
        """The categories of allocations of such sizes and stacks; a new column.

        ``backward``: made in the backward pass, whose threads have no frames of Python.
        """
        alone = (stack == EMPTY) & backward
        hopper = (size == _OF_HOPPER) & (category == Category.UNKNOWN)
        hopper &= alone | np.isin(stack, list(self._stacks))
        others = (size == _OF_MOST_CARDS) & np.isin(category, _VAGUE)
        result: Column = np.where(hopper | others, Category.LIBRARY_WORKSPACE, category)
        return result.astype(category.dtype)
