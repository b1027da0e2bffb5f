"""Gradients that meet: a dispatch mode makes torch sum them anew, which is recorded as in place."""

from __future__ import annotations

from functools import cache
from types import FrameType
from typing import Any

from memprof.sources.cpu.live_storages import ROW, LiveStorages, StorageReference, storage_of

__all__ = ["GradientSums"]

_TIME, _SERIAL = 3, 6
"""Places in a row, see `ROW`."""


class GradientSums:
    """Told of the sums that autograd makes; exchanges their rows with the ends of what they add to.

    Where several gradients come to one node, torch adds to the first of them in place if nobody
    else has it. Under a dispatch mode it does not trust a tensor to be a plain one
    (``can_accumulate_inplace`` in torch's ``input_buffer.cpp``): it makes a new sum and lets the
    old one go. Without the mode the two would have the same memory. So the old one is said to end
    before the new one comes, where nothing came between the two.
    """

    def __init__(self, live: LiveStorages) -> None:
        """``live`` are the storages that are known."""
        self._live = live
        self._waiting: tuple[int, StorageReference, int] | None = None

    @property
    def waits(self) -> bool:
        """Whether a sum was noted of which nobody knows yet whether its old one ended."""
        return self._waiting is not None

    def see(self, new: StorageReference, args: tuple[Any, ...], frame: FrameType | None) -> None:
        """An addition has returned ``new``, which is the newest storage, of ``args``.

        ``frame`` is the innermost of Python's. Sums that the program makes are left as they are: in
        a forward pass, in a ``backward`` or a hook of its own, and in a backward pass whose graph
        is wanted. What a formula of torch's own adds up looks the same as what meets at a node.
        """
        import torch

        if torch._C._current_graph_task_id() == -1 or torch.is_grad_enabled():
            return
        if frame is not None and frame.f_code.co_filename not in _files_of_engine():
            return
        live, storage = self._live, storage_of(args[0])
        old = live.references.get(storage._cdata) if storage is not None else None
        if old is not None and old.size == new.size and len(args) > 1:
            self._waiting = len(live.rows), new, old.serial

    def settle(self) -> None:
        """Exchange the sum's row with that of the old one's end, if that came right behind it."""
        if self._waiting is None:
            return
        (end, new, old), self._waiting = self._waiting, None
        live = self._live
        rows, begin = live.rows, end - ROW
        made, freed = rows[begin:end], rows[end : end + ROW]
        if len(freed) < ROW or not made or made[_SERIAL] != new.serial:
            return
        if freed[0] == 1 or freed[_SERIAL] != old:
            return
        made[_TIME], freed[_TIME] = freed[_TIME], made[_TIME]
        rows[begin : end + ROW] = freed + made
        live.lower_peak(new.serial, new.size)

    def clear(self) -> None:
        """Forget the sum that waits: its rows are taken."""
        self._waiting = None


@cache
def _files_of_engine() -> frozenset[str]:
    """The files of torch whose functions call the engine that runs a backward pass."""
    import torch

    return frozenset((torch.autograd.__file__, torch.autograd.graph.__file__))
