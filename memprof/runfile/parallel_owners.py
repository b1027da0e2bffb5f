"""Owners that stacks tell of in parallel training: DDP's buckets, FSDP's gathered parameters.

Nothing of Python refers to a bucket of DDP's reducer, and FSDP frees and refills a gathered
parameter behind one tensor. So no look at the program's objects finds whose their bytes are, but
the function of torch that asked for them does. It is read where a file is read: nothing of it runs
in the job, and files that older versions wrote have it too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from memprof.trace import Action, Category, Column, Events, Frame, State

__all__ = ["ParallelOwners"]

Ints = npt.NDArray[np.int64]

_DDP = re.compile(r"/torch/nn/parallel/distributed\.py$")
_FSDP2 = re.compile(r"/torch/distributed/(_composable/fsdp|fsdp/_fully_shard)/_fsdp_\w+\.py$")
_FSDP1 = re.compile(r"/torch/distributed/fsdp/(_flat_param|_runtime_utils)\.py$")
_PIPELINE = re.compile(r"/torch/distributed/pipelining/\w+\.py$")

_REDUCER = frozenset(("_ddp_init_helper", "_pre_forward", "_rebuild_buckets"))
"""They call the reducer, which is C++: its buckets have such a frame innermost."""
_GATHERING = frozenset(
    (
        "init_all_gather_outputs",
        "alloc_all_gather_outputs",
        "init_unsharded_param",
        "foreach_all_gather_copy_out",
        "_alloc_padded_unsharded_flat_param",
    )
)
_COMMUNICATING = frozenset(
    ("foreach_all_gather", "foreach_reduce", "_get_reduce_scatter_tensors", "_reduce_grad")
)
_RECEIVED = "_make_tensor_from_meta"
_RECEIVING = re.compile(r"recv_info|^_prepare_forward_infra$|^__init__$")
_NEAR = 4
"""Frames from the innermost: between making a buffer to receive into and its setup lie no more."""
_MOST = 1 << 20
"""Of frames and of stacks that are kept in mind: a damaged file numbers its rows as it likes."""


class _Part(IntEnum):
    """What a frame of torch's is in the middle of."""

    REDUCER = 1
    GATHERING = 2
    COMMUNICATING = 3
    RECEIVED = 4
    RECEIVING = 5


_FINER = {
    _Part.REDUCER: Category.GRADIENT_BUCKET,
    _Part.GATHERING: Category.GATHERED_PARAMETER,
    _Part.COMMUNICATING: Category.COMMUNICATION_BUFFER,
}
_VAGUE = (Category.UNKNOWN, Category.TEMPORARY, Category.ACTIVATION, Category.INPUT)
"""What may give way: the job found no owner, or only that a pass needed it."""


class ParallelOwners:
    """The stacks of a run that make such memory; rows are added as the file's tables are."""

    def __init__(self) -> None:
        """No stack is known."""
        self._frames: dict[int, _Part] = {}
        self._compiled: set[int] = set()
        """Rows of frames that are not Python's: snapshots may have those of C++ too."""
        self._names: dict[tuple[str, str], _Part | None] = {}
        self._category_of: dict[int, Category] = {}

    def add(
        self,
        first_frame: int,
        frames: Iterable[Sequence[str | int] | Frame],
        first_stack: int,
        stacks: Iterable[Sequence[int]],
    ) -> None:
        """Note new rows of the tables, numbered on from ``first_frame`` and ``first_stack``.

        ``frames`` begin with a function and its file; ``stacks`` are rows of frames, the innermost
        first.
        """
        for row, frame in enumerate(frames, start=first_frame):
            name, filename = str(frame[0]), str(frame[1])
            part = self._part(name, filename)
            if part is not None and len(self._frames) < _MOST:
                self._frames[row] = part
            if not filename.endswith(".py") and len(self._compiled) < _MOST:
                self._compiled.add(row)
        if not self._frames:
            return
        for row, stack in enumerate(stacks, start=first_stack):
            category = self._category(stack)
            if category is not None and len(self._category_of) < _MOST:
                self._category_of[row] = category

    def events(self, events: Events) -> Events:
        """The events, with finer categories of what such stacks allocated."""
        if not self._category_of:
            return events
        category = self.categories(events.category, events.stack, events.action == Action.ALLOC)
        return replace(events, category=category)

    def state(self, state: State | None) -> State | None:
        """The state, with finer categories of such blocks."""
        if state is None or not self._category_of:
            return state
        blocks = state.blocks
        finer = self.categories(blocks.category, blocks.stack)
        return replace(state, blocks=replace(blocks, category=finer))

    def categories(
        self, category: Column, stack: Column, where: npt.NDArray[np.bool_] | None = None
    ) -> Column:
        """The categories of allocations by their stacks' rows, those ``where`` says; a new column.

        A stack of FSDP's reduction makes what is sent or what is received. If some of what a stack
        made became gradients, all of it did.
        """
        if not self._category_of:
            return category
        rows = np.array(list(self._category_of), np.int64)
        made = np.array([int(one) for one in self._category_of.values()], np.int64)
        order = np.argsort(rows)
        place = np.minimum(np.searchsorted(rows[order], stack), len(rows) - 1)
        here = rows[order][place] == stack
        if where is not None:
            here &= where
        finer = np.where(here, made[order][place], Category.UNKNOWN)
        sending = finer == Category.COMMUNICATION_BUFFER
        received = np.unique(stack[sending & (category == Category.GRADIENT)])
        finer[sending & np.isin(stack, received)] = Category.GRADIENT
        gives_way = np.isin(category, [int(one) for one in _VAGUE])
        # While it is gathered, a parameter is the module's: it may have been met as such.
        gives_way |= (finer == Category.GATHERED_PARAMETER) & (category == Category.PARAMETER)
        result: Column = np.where((finer > 0) & gives_way, finer, category).astype(category.dtype)
        return result

    def _part(self, name: str, filename: str) -> _Part | None:
        key = name, filename
        if key not in self._names:
            if len(self._names) >= _MOST:
                return None
            self._names[key] = _part(name.rpartition(".")[2], filename.replace("\\", "/"))
        return self._names[key]

    def _category(self, stack: Sequence[int]) -> Category | None:
        parts = [self._frames.get(row) for row in stack if row not in self._compiled]
        if parts[:1] == [_Part.REDUCER]:
            return Category.GRADIENT_BUCKET
        if parts[:1] == [_Part.RECEIVED] and _Part.RECEIVING in parts[1:_NEAR]:
            return Category.COMMUNICATION_BUFFER
        for part in parts:
            if part in (_Part.GATHERING, _Part.COMMUNICATING):
                return _FINER[part]
        return None


def _part(function: str, filename: str) -> _Part | None:
    if _DDP.search(filename):
        return _Part.REDUCER if function in _REDUCER else None
    if _PIPELINE.search(filename):
        if function == _RECEIVED:
            return _Part.RECEIVED
        return _Part.RECEIVING if _RECEIVING.search(function) else None
    if _FSDP2.search(filename) or _FSDP1.search(filename):
        if function in _GATHERING:
            return _Part.GATHERING
        return _Part.COMMUNICATING if function in _COMMUNICATING else None
    return None
