"""How many of the rows that a loss is given it counts: not those with the label it ignores."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import isfinite
from typing import Any

from memprof.records import LabelledRows
from memprof.sources.cpu.live_storages import StorageReference
from memprof.trace import EMPTY

__all__ = ["LabelledRowsWatch", "likelihoods"]

_MOST = 256
"""Stacks and sizes that are noted in a window."""
_LEAST_BYTES = 1 << 20
"""Smaller scores are no reason to change a program."""
_SCORES, _LABELS, _WEIGHT, _REDUCTION = range(4)
"""Arguments of the operator."""
_ADDING_UP = (1, 2)
"""Its reductions, to the mean and to the sum; else it does not say how many rows count."""


@cache
def likelihoods() -> frozenset[int]:
    """The operators that add up rows by their labels and say how many they counted; by identity."""
    import torch

    operators = torch.ops.aten
    # The second has the classes in the dimension behind the first.
    return frozenset(
        map(id, (operators.nll_loss_forward.default, operators.nll_loss2d_forward.default))
    )


class LabelledRowsWatch:
    """Asked about what `likelihoods` return: the loss, and how many rows are in it."""

    def __init__(self, references: Mapping[int, StorageReference]) -> None:
        """``references`` are the known storages by their ``_cdata``."""
        self._references = references
        self._rows: dict[tuple[int, int], list[int]] = {}

    def see(self, args: Any, out: Any) -> None:
        """Note one loss. One whose classes have weights adds up those, and counts no rows.

        What counts is a number of the scores' type, which may be too short for it.
        """
        scores, labels = args[_SCORES], args[_LABELS]
        nbytes = scores.numel() * scores.element_size()
        if nbytes < _LEAST_BYTES or not out[1].is_cpu:
            return
        if args[_WEIGHT] is not None or args[_REDUCTION] not in _ADDING_UP:
            return
        rows, counted = labels.numel(), out[1].item()
        if not (rows and isfinite(counted)):
            return
        reference = self._references.get(scores.untyped_storage()._cdata)
        key = reference.stack if reference is not None else EMPTY, nbytes
        if key not in self._rows and len(self._rows) >= _MOST:
            return
        known = self._rows.setdefault(key, [0, 0, 0])
        for at, number in enumerate((1, rows, min(rows, round(counted)))):
            known[at] += number

    def take(self, device: str) -> list[LabelledRows]:
        """What was noted since the last call."""
        noted, self._rows = self._rows, {}
        if not noted:
            return []
        columns = [*zip(*noted, strict=True), *zip(*noted.values(), strict=True)]
        return [LabelledRows(device, *map(list, columns))]
