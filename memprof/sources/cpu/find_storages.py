"""Finding CPU storages that nobody saw being made: through the garbage collector and the graph."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from memprof.sources.autograd import grad_fn_of, gradient_of
from memprof.sources.gc_instances import instances_of, subclasses_of, young_instances_of
from memprof.sources.graph_nodes import most_nodes, note_nodes
from memprof.sources.guarded_access import GuardedAccess
from memprof.sources.owners.tensor_owners import Differentiated, is_plain, storages, tensors_in
from memprof.sources.tensor_addresses import has_ended
from memprof.sources.training_threads import may_read_graphs, may_read_tensors

__all__ = ["SavedTensors", "StorageSearch", "cpu_storages", "objects_with_tensors", "reads_saved"]

_NODES = 100_000
"""The graph is followed this far: a search must not take longer than a window."""
_REST = 20
"""A full search is repeated when this many times its duration has passed."""


def cpu_storages(tensor: Any, guard: GuardedAccess) -> list[Any]:
    """The storages of a tensor that lie in the memory of the host."""
    if is_plain(tensor):
        return list(storages(tensor, guard)) if tensor.is_cpu else []
    return [s for s in storages(tensor, guard) if s.device.type == "cpu"]


class StorageSearch:
    """Looks for storages; a full search takes milliseconds, one among new objects far less."""

    def __init__(self, guard: GuardedAccess) -> None:
        self._guard = guard
        self.saved: set[int] | None = None
        """Keys (``_cdata``) of what graphs save, after a full search; None when they were not
        looked at or are too large to be followed."""
        self.differentiated = Differentiated(guard)
        self._collections = 0
        self._took_s = 0.0
        self._ended_s = 0.0

    @property
    def reads_saved(self) -> bool:
        """Whether torch tells what graphs save; before 2.8 reading it could run a hook."""
        return reads_saved()

    def everything(self) -> Iterator[Any]:
        """The storages of every object that Python knows and of what autograd saved for them."""
        began = time.monotonic()
        self.saved = None
        self._collections = _full_collections()
        tensors = [] if _is_being_imported() else objects_with_tensors()
        self.differentiated.see(tensors)
        yield from _storages(tensors, self._guard)
        if not may_read_graphs():
            return
        # A gradient that Python has never looked at is no object yet.
        yield from _storages(self._guard.within(_gradient, tensors), self._guard)
        graphs = SavedTensors(tensors, self._guard)
        saved = set()
        for storage in _storages(graphs, self._guard):
            saved.add(storage._cdata)
            yield storage
        if graphs.complete:
            self.saved = saved
        self._ended_s = time.monotonic()
        self._took_s = self._ended_s - began

    def recent(self, *, thorough: bool) -> Iterator[Any]:
        """The storages of objects made since the last search, or a little earlier.

        ``thorough`` asks for a full search; if the last one was a while ago, it is one.
        """
        self.saved = None
        rested = time.monotonic() - self._ended_s > _REST * self._took_s
        # Objects may have become old that nobody has looked at yet.
        if rested and (thorough or self._collections != _full_collections()):
            return self.everything()
        return _storages(self._new_tensors(), self._guard)

    def young(self) -> None:
        """Look for tensors with gradients among new objects."""
        self._new_tensors()

    def _new_tensors(self) -> list[Any]:
        if not may_read_tensors():
            return []
        tensors = young_instances_of(_kinds())
        self.differentiated.see(tensors)
        return tensors


def _is_being_imported() -> bool:
    """Whether torch's own import is under way, before whose end nobody can have made a tensor."""
    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


def reads_saved() -> bool:
    """Whether torch tells what graphs save; before 2.8 reading it could run a hook."""
    import torch

    return hasattr(torch._C._autograd.SavedTensor, "data")


def _full_collections() -> int:
    """Grows when an object may have become so old that a look at the young ones misses it."""
    # From 3.14 on an object is old once it has survived a single collection.
    collection_stats = gc.get_stats()[2:] if sys.version_info < (3, 14) else gc.get_stats()
    return sum(generation["collections"] for generation in collection_stats)


def objects_with_tensors() -> list[Any]:
    """Every tensor, storage and checkpoint that Python knows: where graphs can be followed from."""
    return instances_of([*_kinds(), *_checkpoints()]) if may_read_tensors() else []


def _kinds() -> list[type]:
    import torch

    return [torch.UntypedStorage, *subclasses_of(torch.Tensor)]


def _checkpoints() -> list[type]:
    """What keeps the arguments of a function that activation checkpointing will repeat."""
    from torch.utils import checkpoint

    frame: type | None = getattr(checkpoint, "_CheckpointFrame", None)
    return [frame] if frame is not None else []


def _gradient(item: Any) -> Iterator[Any]:
    import torch

    if isinstance(item, torch.Tensor):
        gradient = gradient_of(item)
        if gradient is not None:
            yield gradient


def _storages(tensors: Iterable[Any], guard: GuardedAccess) -> Iterator[Any]:
    import torch

    def of(item: Any) -> Iterable[Any]:
        if isinstance(item, torch.UntypedStorage):
            return (item,) if not has_ended(item) and item.device.type == "cpu" else ()
        return cpu_storages(item, guard) if isinstance(item, torch.Tensor) else ()

    return guard.within(of, tensors)


class SavedTensors:
    """The tensors that autograd keeps for a backward pass, to be iterated over once.

    They are those of the graphs behind some tensors, and of checkpoints.
    """

    def __init__(self, live_tensors: list[Any], guard: GuardedAccess) -> None:
        self._guard = guard
        self.complete = True
        """Whether the graphs were followed to their ends."""
        self._live_tensors = live_tensors
        self._names: dict[type, list[str]] = {}

    def __iter__(self) -> Iterator[Any]:
        nodes: list[Any] = []
        if not may_read_graphs():
            self.complete = False
            return
        most = most_nodes(_NODES)
        yield from self._guard.within(partial(self._begin, nodes, most), self._live_tensors)
        visited = set(nodes)
        while nodes and len(visited) < most:
            node = nodes.pop()
            parents = {parent for parent, _ in node.next_functions if parent is not None} - visited
            visited |= parents
            nodes += parents
            yield from self._guard.within(self._saved_by, (node,))
        note_nodes(len(visited))
        self.complete = not nodes

    def _begin(self, nodes: list[Any], most: int, item: Any) -> Iterator[Any]:
        """Adds the node that made a tensor; what is saved elsewhere than in graphs."""
        import torch

        if isinstance(item, torch.Tensor):
            node = grad_fn_of(item) if len(nodes) <= most else None
            if node is not None:
                nodes.append(node)
        else:  # a checkpoint; an older torch hangs its arguments on a node of their own
            yield from self._unpack(getattr(item, "saved_args", ()))

    def _saved_by(self, node: Any) -> Iterator[Any]:
        """What a node saved, what a hook made of it, and what a function put on its ``ctx``."""
        kind = type(node)
        names = self._names.get(kind)
        if names is None:
            names = self._names[kind] = [n for n in dir(node) if n.startswith("_raw_saved_")]
        for name in names:
            try:
                raw = getattr(node, name)
            except RuntimeError:  # its backward has run: nothing is kept
                continue
            yield from self._unpack(raw if isinstance(raw, (list, tuple)) else (raw,))
        yield from tensors_in(getattr(node, "__dict__", None), self._guard)

    def _unpack(self, saved: Iterable[Any]) -> Iterator[Any]:
        """What saved variables hold, as it lies there: unpacking would call the program's hooks."""
        for one in saved:
            yield from tensors_in(getattr(one, "data", None), self._guard)
