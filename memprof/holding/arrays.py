"""NumPy arrays over a tensor's memory: the collector does not track them, nor what they hold."""

from __future__ import annotations

import gc
from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from memprof.holding.heap import CHUNK
from memprof.holding.kinds import LinkKind, link
from memprof.holding.search import Reference, Search
from memprof.holding.sizes import nbytes_of
from memprof.records import Link

__all__ = ["held_by_arrays"]

Array = npt.NDArray[Any]

_DEEPEST = 8
"""Arrays that are views of one another, down to the tensor."""


def held_by_arrays(search: Search, keys: Collection[int]) -> dict[int, Reference]:
    """For each of ``keys`` an array that keeps it, and that something which was reached holds.

    A pass over all that was reached, so only for what nothing else explains.
    """
    found: dict[int, Reference] = {}
    if not any(search.key_of.get(id(one)) in keys for one in search.tensors):
        return found
    for level, record in enumerate(search.heap.levels):
        for number in range(-(-len(record.objects) // CHUNK)):
            if search.deadline.check():
                return found
            chunk = search.heap.chunk(level, number)
            arrays = [one for one in gc.get_referents(*chunk) if type(one) is np.ndarray]
            for array in arrays:
                tensor = _tensor_below(array)
                key = search.key_of.get(id(tensor), 0)
                if key in keys and key not in found:
                    owner = next(one for one in chunk if _refers(one, array))
                    search.adopt(array, owner, level)
                    found[key] = Reference(array, level, tensor, (_link(array, tensor),))
    return found


def _tensor_below(array: Array) -> object:
    below: object = array
    for _ in range(_DEEPEST):
        if type(below) is not np.ndarray:
            break
        below = below.base
    return below


def _refers(owner: object, value: object) -> bool:
    return any(one is value for one in gc.get_referents(owner))


def _link(array: Array, tensor: object) -> Link:
    kept = nbytes_of(tensor)
    shown = f"{array.nbytes} of {kept} bytes" if array.nbytes < kept else ""
    return link(LinkKind.BASE, shown, "ndarray")
