"""When operators read large tensors last in a window."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from memprof.sources.cpu.event_batch import Batch
from memprof.sources.cpu.live_storages import LiveStorages, StorageReference
from memprof.sources.operator_schema import is_mutable, schema_name
from memprof.sources.protocol import LastRead
from memprof.trace import NOT_RECORDED

if TYPE_CHECKING:  # a millisecond of a recording's beginning
    import numpy.typing as npt

__all__ = ["LastReadsWatch"]

Ints: TypeAlias = "npt.NDArray[np.int64]"

_LEAST_BYTES = 256 << 10
"""Of a storage that is followed, …"""
_LEAST_PART = 512
"""… and one part in so many of the bytes in use as it is made."""
_MOSTLY = 0.5
_ALL = 0.99
"""Of a storage's bytes, which an allocator may have rounded up."""
_PICKING = frozenset(
    f"aten::{name}"
    for name in (
        *("_unsafe_index", "embedding", "gather", "index", "index_select", "masked_select"),
        *("narrow_copy", "select_copy", "slice_copy", "take"),
    )
)


_OWN_GRADIENT = frozenset(
    f"aten::{name}_backward" for name in ("hardtanh", "sigmoid", "tanh", "threshold")
)
"""What computes the gradient of each value by itself, for which that value was kept."""


class _Way(Enum):
    """What an operator does with the first tensor that it is given."""

    READING = auto()
    VIEWING = auto()
    """It returns a view: nothing is read yet."""
    PICKING = auto()
    """It reads as many values as it returns."""
    WRITING = auto()
    """It returns what it was given, and has written to that."""
    RETURNING = auto()
    """It goes back through what made the second: of as many values as gradients come for."""
    CHANGING = auto()
    """The same, value by value: of what it changes throughout nothing was read for good."""


class LastReadsWatch:
    """Told of large storages as they are made and, while one lives, of every operator's arguments.

    Reading is to be given to an operator, a view's as well. What NumPy reads is not seen.
    """

    def __init__(self, live: LiveStorages) -> None:
        """``live`` are the storages that are known."""
        self._live = live
        self.followed: list[StorageReference] = []
        """Nobody has to call `see` where it is empty; always the same list."""
        self._ways: dict[Any, _Way] = {}
        self._batches: list[tuple[int, Ints, Ints]] = []
        """Of each drain its first serial, and its allocations' serials and events."""

    def clear(self) -> None:
        """Follow nothing that was made before: a window begins, or an operator was missed."""
        self.followed.clear()
        self._batches.clear()

    def add(self, reference: StorageReference) -> bool:
        """Follow a storage that is new, if it is large."""
        size = reference.size
        if size >= _LEAST_BYTES and size * _LEAST_PART >= self._live.bytes:
            reference.part = 0.0
            self.followed.append(reference)
            return True
        return False

    def see(self, values: Any, func: Any, args: Any, out: Any) -> bool:
        """An operator ``func`` was given some of its ``args``, and has returned ``out``.

        Sequences among the values are looked into. True where one is of an operator's graph.
        """
        is_of_graph = False
        for value in values:
            if isinstance(value, (list, tuple)):
                is_of_graph |= self.see(value, func, args, out)
            elif hasattr(value, "untyped_storage"):
                reference = self._live.references.get(value.untyped_storage()._cdata)
                if reference is not None:
                    reference.read = self._live.newest
                    is_of_graph |= reference.node is not None
                    if reference.part < 1:
                        self.note_part(reference, value, func, args, out)
        return is_of_graph

    def note_part(
        self, reference: StorageReference, value: Any, func: Any, args: Any, out: Any
    ) -> None:
        """Add what the operator reads of a storage to what others have read of it."""
        way = self._ways.get(func)
        if way is None:
            way = self._ways[func] = _way(func)
        if way is _Way.VIEWING or (way is _Way.RETURNING and len(args) > 1 and value is args[1]):
            return
        is_plain = hasattr(out, "untyped_storage")
        if is_plain and way is _Way.READING and out.untyped_storage()._cdata == reference.key:
            return  # ``_unsafe_view``, whose schema does not say so
        is_changed = is_plain and way is _Way.CHANGING and value is out
        if is_changed and value.numel() * value.element_size() >= _ALL * reference.size:
            return
        takes = out if is_plain and way is _Way.PICKING and value is args[0] else value
        reference.part += takes.numel() * takes.element_size() / reference.size

    def take(self, batch: Batch) -> list[LastRead]:
        """What is known of those that have died in a batch.

        Left out are those that died before anything else was allocated, and were read whole.
        """
        self._batches.append((batch.first_serial, *batch.allocations))
        references = self._live.references
        over = [one for one in self.followed if references.get(one.key) is not one]
        if not over:
            return []
        ends = batch.ends_of(np.array([one.serial for one in over]))
        is_told = ends != NOT_RECORDED
        told = {id(one) for one, is_one in zip(over, is_told.tolist(), strict=True) if is_one}
        self.followed[:] = [one for one in self.followed if id(one) not in told]
        over = [one for one in over if id(one) in told]
        made = self._events_of([one.serial for one in over])
        # A sum of gradients is made behind the end of what it reads, see `GradientSums`.
        read = np.minimum(self._events_of([one.read for one in over]) + 1, ends[is_told])
        rests = batch.allocates_between(read, ends[is_told])
        columns = (made.tolist(), read.tolist(), rests.tolist(), over)
        return [
            LastRead(made_at, read_at, min(1.0, round(one.part, 4)))
            for made_at, read_at, is_rest, one in zip(*columns, strict=True)
            if made_at != NOT_RECORDED and (is_rest or one.part < _MOSTLY)
        ]

    def living(self, events: int) -> list[LastRead]:
        """The same of those that live, after a window's last batch; it has so many ``events``.

        Left out are those that were read when the last one was made, and later.
        """
        references = self._live.references
        alive = [one for one in self.followed if references.get(one.key) is one]
        made = self._events_of([one.serial for one in alive])
        read = self._events_of([one.read for one in alive]) + 1
        return [
            LastRead(made_at, read_at, min(1.0, round(one.part, 4)))
            for made_at, read_at, one in zip(made.tolist(), read.tolist(), alive, strict=True)
            if NOT_RECORDED < made_at < read_at < events
        ]

    def _events_of(self, serials: list[int]) -> Ints:
        """The event of the last allocation up to each serial."""
        wanted = np.array(serials, dtype=np.int64)
        events = np.full(len(wanted), NOT_RECORDED, dtype=np.int64)
        left = np.ones(len(wanted), dtype=bool)
        for first, of_batch, starts in reversed(self._batches):
            here = left & (wanted >= first)
            events[here] = starts[np.searchsorted(of_batch, wanted[here], side="right") - 1]
            left &= ~here
            if not left.any():
                break
        return events


def _way(func: Any) -> _Way:
    if getattr(func, "is_view", False):
        return _Way.VIEWING
    if (name := schema_name(func)) in _OWN_GRADIENT:
        return _Way.RETURNING
    if is_mutable(func):
        return _Way.CHANGING if _is_pointwise(func) else _Way.WRITING
    return _Way.PICKING if name in _PICKING else _Way.READING


def _is_pointwise(func: Any) -> bool:
    """Whether torch marks an operator as one that computes value by value."""
    return any(getattr(tag, "name", "") == "pointwise" for tag in getattr(func, "tags", ()))
