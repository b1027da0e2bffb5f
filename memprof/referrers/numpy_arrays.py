"""NumPy arrays over a tensor's memory, or of objects: the collector tracks neither.

Nor does it what they hold; a data frame keeps its columns of objects in such arrays.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import filterfalse
from typing import Any

import numpy as np
import numpy.typing as npt

from memprof.cpython.object_addresses import addresses
from memprof.reference_chain import Link, LinkKind
from memprof.referrers.heap import CHUNK, places_among
from memprof.referrers.introspection import refers
from memprof.referrers.tensor_attributes import nbytes_of
from memprof.referrers.torch_references import is_tensor_type

__all__ = ["ArrayReference", "kept_by_arrays"]

Array = npt.NDArray[Any]

_MOST_OBJECTS = 100_000
"""Objects in an array; a larger one would hold up a search."""
_KINDS = sorted(map(id, (np.ndarray, dict, tuple)))
_DEEPEST = 8
"""Arrays that are views of one another, down to the tensor."""


@dataclass(frozen=True, slots=True, eq=False)
class ArrayReference:
    """An array that keeps something alive, and how an object leads to it."""

    owner: object
    """What refers to the array, or to the first container on the way."""
    path: list[object]
    """Containers that the collector does not track, and at last the array."""
    value: object
    """What the array keeps."""
    links: tuple[Link, ...]
    """From the array to that."""


def kept_by_arrays(chunk: Sequence[object]) -> Iterator[ArrayReference]:
    """What the arrays keep to which the objects of ``chunk`` refer."""
    for array, path in _arrays_in(chunk):
        for value, links in _owners_of_array(array):
            owner = next(one for one in chunk if refers(one, path[0]))
            yield ArrayReference(owner, path, value, links)


def _owners_of_array(array: Array) -> Iterator[tuple[object, tuple[Link, ...]]]:
    """Tensors that an array keeps: the one it shows, or the objects in it, also inside lists."""
    tensor = _tensor_below(array)
    if is_tensor_type(type(tensor)):
        yield tensor, (_link(array, tensor),)
    if array.dtype != np.dtype(object) or array.size > _MOST_OBJECTS:
        return
    for number, one in enumerate(array.ravel().tolist()):
        here = Link(LinkKind.ITEM, str(number), "ndarray", length=array.size)
        yield one, (here,)
        if type(one) in (list, tuple) and len(one) <= CHUNK:
            for inner, part in enumerate(one):
                below = Link(LinkKind.ITEM, str(inner), type(one).__name__, length=len(one))
                yield part, (here, below)


def _arrays_in(chunk: Sequence[object]) -> Iterator[tuple[Array, list[object]]]:
    """Arrays that ``chunk`` refers to, each with the containers on the way and itself.

    A dict or tuple that holds nothing which the collector tracks, such as arrays by their number,
    is not tracked either, and so not in the heap.
    """
    level = _untracked(gc.get_referents(*chunk))
    ways: list[list[object]] = [[one] for one in level]
    # Which object leads to which is asked only down to where there is an array: mostly nowhere.
    deepest = 0
    for depth in range(_DEEPEST):
        if not level:
            break
        if np.ndarray in set(map(type, level)):
            deepest = depth + 1
        level = _untracked(gc.get_referents(*level))
    for _ in range(deepest):
        yield from ((way[-1], way) for way in ways if type(way[-1]) is np.ndarray)
        ways = [
            [*way, one]
            for way in ways
            if type(way[-1]) is not np.ndarray
            for one in _untracked(gc.get_referents(way[-1]))
        ]


def _untracked(objects: list[object]) -> list[object]:
    """Arrays, which the collector never tracks, and dicts and tuples that it does not track."""
    # No step of Python for each: they may be half of what there is on the heap.
    of_kinds = places_among(addresses(list(map(type, objects))), _KINDS)
    return list(filterfalse(gc.is_tracked, map(objects.__getitem__, of_kinds)))


def _tensor_below(array: Array) -> object:
    below: object = array
    for _ in range(_DEEPEST):
        if type(below) is not np.ndarray:
            break
        below = below.base
    return below


def _link(array: Array, tensor: object) -> Link:
    storage = nbytes_of(tensor)
    if array.nbytes >= storage:
        return Link(LinkKind.BASE, type_name="ndarray")
    return Link(LinkKind.BASE, type_name="ndarray", shown_bytes=array.nbytes, storage_bytes=storage)
