"""CPU tensors that pretend to lie on a stand-in's device: each storage is a block while it lives.

So programs with real modules, graphs and optimizers run through the CUDA source without a GPU. What
a GPU's own allocator, streams and threads would do differently is not shown by it.
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from memprof.record import session
from memprof.sources.cuda.source_with_owners import OwnedCudaSource
from memprof.sources.tensor_addresses import StorageAddress, place_of
from memprof.testing.cuda import TorchStandIn


class Pretended(TorchDispatchMode):
    """Tensors made inside lie on ``device`` of the stand-in, until they die."""

    def __init__(self, stand_in: TorchStandIn, device: int = 0) -> None:
        super().__init__()
        self.stand_in, self._device = stand_in, device
        self._blocks: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._dead: list[int] = []
        self._busy = False
        stand_in.hidden |= {__file__, contextlib.__file__}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for one in tree_leaves(out):
            if isinstance(one, torch.Tensor) and one.layout is torch.strided:
                self._lay(one.untyped_storage())
        return out

    def place(self, tensor: Any) -> StorageAddress:
        """Where a tensor pretends to lie; its own place if it was made outside."""
        block = self._blocks.get(torch._C._storage_id(tensor))
        return (f"cuda:{self._device}", block[1]) if block is not None else place_of(tensor)

    def _lay(self, storage: Any) -> None:
        key = storage._cdata
        if key in self._blocks or not storage.nbytes():
            return
        self._busy = True
        in_backward = torch._C._current_graph_task_id() != -1
        with self.stand_in.backward_thread() if in_backward else contextlib.nullcontext():
            address = self.stand_in.alloc(storage.nbytes(), self._device)
        self._busy = False
        self._blocks[key] = weakref.ref(storage, lambda _: self._died(key)), address
        self._free_dead()

    def _died(self, key: int) -> None:
        """A collection may come in the middle of an allocation; the model must not notice."""
        self._dead.append(self._blocks.pop(key)[1])
        if not self._busy:
            self._free_dead()

    def _free_dead(self) -> None:
        while self._dead:
            self.stand_in.free(self._dead.pop(), self._device)


def recorded_device(monkeypatch: pytest.MonkeyPatch, capacity: int = 8 << 30) -> Pretended:
    """A device that `memprof.track` records, for tensors that pretend to lie on it."""
    stand_in = TorchStandIn(capacity=capacity)
    mode = Pretended(stand_in)
    monkeypatch.setattr(
        session,
        "event_sources",
        lambda _, interner, loop_watch, _note: [
            OwnedCudaSource(interner, loop_watch, stand_in, mode.place)
        ],
    )
    return mode
