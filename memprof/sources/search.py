"""Finding CPU storages that nobody saw being made: through the garbage collector and the graph."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

from memprof.sources.owners import storages

__all__ = ["Search", "cpu_storages"]

_NODES = 100_000
"""The graph is followed this far: a search must not take longer than a window."""
_REST = 20
"""A full search is repeated when this many times its duration has passed."""


def cpu_storages(tensor: Any) -> list[Any]:
    """The storages of a tensor that lie in the memory of the host."""
    return [s for s in storages(tensor) if s.device.type == "cpu"]


class Search:
    """Looks for storages; a full search takes milliseconds, one among new objects far less."""

    def __init__(self) -> None:
        self._collections = 0
        self._took_s = 0.0
        self._ended_s = 0.0

    def everything(self) -> Iterator[Any]:
        """The storages of every object that Python knows and of what autograd saved for them."""
        began = time.monotonic()
        self._collections = _full_collections()
        tensors = _tensors(gc.get_objects())
        yield from _storages(tensors)
        yield from _storages(_saved(tensors))
        self._ended_s = time.monotonic()
        self._took_s = self._ended_s - began

    def recent(self) -> Iterator[Any]:
        """The storages of objects made since the last search, or a little earlier."""
        rested = time.monotonic() - self._ended_s > _REST * self._took_s
        if rested and self._collections != _full_collections():  # new objects have become old
            return self.everything()
        # Not [*a, *b]: the list that is being built would find itself, a cycle that keeps it all.
        young = gc.get_objects(generation=0) + gc.get_objects(generation=1)
        return _storages(_tensors(young))


def _full_collections() -> int:
    """Grows when an object may have become so old that a look at the young ones misses it."""
    # From 3.14 on an object is old once it has survived a single collection.
    counted = gc.get_stats()[2:] if sys.version_info < (3, 14) else gc.get_stats()
    return sum(generation["collections"] for generation in counted)


def _tensors(objects: Iterable[Any]) -> list[Any]:
    import torch

    kinds = {torch.UntypedStorage, *_subclasses(torch.Tensor)}
    return [o for o in objects if type(o) in kinds]


def _subclasses(kind: type) -> set[type]:
    found = {kind}
    children: list[type] = type.__subclasses__(kind)
    for child in children:
        found |= _subclasses(child)
    return found


def _storages(found: Iterable[Any]) -> Iterator[Any]:
    import torch

    for item in found:
        if isinstance(item, torch.UntypedStorage):
            if item.device.type == "cpu":
                yield item
        else:
            yield from cpu_storages(item)


def _saved(tensors: list[Any]) -> Iterator[Any]:
    """Tensors that the graphs behind these keep; what a hook packed away is left packed."""
    import torch

    nodes = [t.grad_fn for t in tensors if isinstance(t, torch.Tensor) and t.grad_fn is not None]
    seen = set(nodes)
    while nodes and len(seen) < _NODES:
        node = nodes.pop()
        parents = {parent for parent, _ in node.next_functions if parent is not None} - seen
        seen |= parents
        nodes += parents
        yield from _saved_by(node)


def _saved_by(node: Any) -> Iterator[Any]:
    names = (name for name in dir(node) if name.startswith("_raw_saved_"))
    for name in names:
        try:
            raw = getattr(node, name)
        except RuntimeError:  # its backward has run: nothing is kept
            continue
        for saved in raw if isinstance(raw, (list, tuple)) else (raw,):
            data = getattr(saved, "data", None)
            if data is not None:
                yield data
