"""What operators compute of every value of a view that shows memory several times."""

from __future__ import annotations

from math import prod
from typing import Any

from memprof.records import OverlapCopies
from memprof.sources.cpu.live_storages import StorageReference, storage_of

__all__ = ["LEAST_BYTES", "OverlapCopiesWatch"]

LEAST_BYTES = 1 << 20
"""Of a result that is looked at."""
_LEAST_TIMES = 2.0
"""That the view shows as many bytes as there are in its storage."""
_HALF = 0.5
"""Of what the view shows, that a result has to hold: else it is reduced."""
_MOST = 1024
"""Stacks and sizes that are noted in a window."""


class OverlapCopiesWatch:
    """Asked about large results: copies of what `unfold` shows, and what is computed of those.

    A dimension that is shown again without end (`expand`) does not count: that is what operators
    are made for.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[StorageReference, float]] = {}
        """By ``_cdata`` the results that live, and how often they hold each value."""
        self._noted: dict[tuple[int, int], tuple[int, float]] = {}
        """By stack and size how many there were, and the least number of times."""

    def see(self, args: Any, new: StorageReference) -> None:
        """Note the result of an operator, whose storage is ``new``, if it is one."""
        given = (value for value in args if hasattr(value, "untyped_storage"))
        times = max((self._times(one, new.size) for one in given), default=0.0)
        if times < _LEAST_TIMES:
            return
        self._known[new.key] = new, times
        key = new.stack, new.size
        if key in self._noted or len(self._noted) < _MOST:
            count, least = self._noted.get(key, (0, times))
            self._noted[key] = count + 1, min(least, times)

    def _times(self, tensor: Any, size: int) -> float:
        """How often a result of so many bytes holds each value that a tensor shows."""
        storage = storage_of(tensor)
        if storage is None:
            return 0.0
        known = self._known.get(storage._cdata)
        if known is not None:
            reference, times = known
            if reference() is None:
                del self._known[storage._cdata]  # another storage has its key by now
            elif size >= _HALF * reference.size:
                return times
        nbytes = storage.nbytes()
        if tensor.numel() * tensor.element_size() < _LEAST_TIMES * nbytes:
            return 0.0
        extents = zip(tensor.shape, tensor.stride(), strict=True)
        shown = prod(extent for extent, stride in extents if stride) * tensor.element_size()
        return shown / nbytes if nbytes and size >= _HALF * shown else 0.0

    def take(self, device: str) -> list[OverlapCopies]:
        """What was noted since the last call."""
        noted, self._noted = self._noted, {}
        self._known = {key: one for key, one in self._known.items() if one[0]() is not None}
        if not noted:
            return []
        return [
            OverlapCopies(
                device,
                [stack for stack, _ in noted],
                [size for _, size in noted],
                [count for count, _ in noted.values()],
                [round(least, 2) for _, least in noted.values()],
            )
        ]
