"""Which results of operators are in double precision, and where that came from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from functools import cache
from typing import Any

from memprof.records import DoubleResults
from memprof.sources.cpu.live_storages import StorageReference

__all__ = ["DoublePrecisionWatch", "Origin", "double_types"]

_MOST = 4096
"""Stacks and sizes that are noted in a window."""
_LEAST_BYTES = 64 << 10
"""A smaller result is no reason to change a program, and there are many."""


class Origin(IntEnum):
    """Why a result is in double precision; the values are those of `DoubleResults`."""

    OUTSIDE = 0
    PROMOTED = 1
    MEANT = 2
    SEVERAL = 3


@cache
def double_types() -> frozenset[Any]:
    """The types of torch that have twice the width of those that models compute in."""
    import torch

    return frozenset((torch.float64, torch.complex128))


class DoublePrecisionWatch:
    """Asked about new results of the CPU: those in double precision, and those of conversions.

    It follows from operator to operator why they are: what a program asked for stays asked for.
    """

    def __init__(self, references: Mapping[int, StorageReference]) -> None:
        """``references`` are the known storages by their ``_cdata``."""
        self._references = references
        self._origins: dict[tuple[int, int], int] = {}
        self._narrowed = 0

    def see(self, args: Any, out: Any, new: StorageReference) -> None:
        """Note the result of an operator, whose storage is ``new``."""
        wide = double_types()
        if out.dtype not in wide:
            source = args[0]
            if source.dtype in wide and out.is_floating_point():
                self._narrowed += source.numel() * source.element_size()
            return
        origin = new.width = self._origin_of(args)
        if new.size < _LEAST_BYTES:
            return
        key = new.stack, new.size
        known = self._origins.setdefault(key, origin) if len(self._origins) < _MOST else origin
        if known != origin:
            self._origins[key] = Origin.SEVERAL

    def take(self, device: str) -> list[DoubleResults]:
        """What was noted since the last call."""
        origins, self._origins = self._origins, {}
        narrowed, self._narrowed = self._narrowed, 0
        if not origins and not narrowed:
            return []
        stacks, sizes = [stack for stack, _ in origins], [size for _, size in origins]
        return [DoubleResults(device, stacks, sizes, [int(o) for o in origins.values()], narrowed)]

    def _origin_of(self, args: Any) -> int:
        """By what went in: nothing in double precision went in where the program asks for it."""
        wide = double_types()
        origins, has_narrower = set(), False
        for tensor in _tensors(args):
            if tensor.dtype in wide:
                if tensor.dim():  # a single value promotes nothing
                    reference = self._references.get(tensor.untyped_storage()._cdata)
                    width = reference.width if reference is not None else -1
                    origins.add(Origin.OUTSIDE if width < 0 else Origin(width))
            elif tensor.dim() and tensor.is_floating_point():
                has_narrower = True
        if not origins or Origin.MEANT in origins:
            return Origin.MEANT
        if has_narrower or Origin.PROMOTED in origins:
            return Origin.PROMOTED
        return max(origins)


def _tensors(args: Iterable[Any]) -> Iterator[Any]:
    for value in args:
        if isinstance(value, (list, tuple)):
            yield from _tensors(value)
        elif hasattr(value, "untyped_storage"):
            yield value
