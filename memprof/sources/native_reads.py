"""When operators read large blocks of a device last, by the native part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from memprof.sources.loop.torch_compile import is_used
from memprof.sources.protocol import LastRead
from memprof.trace import Action, Events

if TYPE_CHECKING:  # a millisecond of a recording's beginning
    import numpy.typing as npt

__all__ = ["CPU", "LEAST_BYTES", "NativeReads"]

CPU = -1
"""The device's number for blocks of torch's CPU allocator."""
LEAST_BYTES = 256 << 10
"""Of a block that is followed, as in ``memprof/native/reads.cpp``."""
_GONE = np.dtype([("made", "i8"), ("read", "i8"), ("part", "f8")])
"""As `Gone` in ``memprof/native/reads.cpp``: numbers of the device's allocations, from 1 on."""

Ints: TypeAlias = "npt.NDArray[np.int64]"


class NativeReads:
    """Follows the blocks of one device in a window; its allocations are numbered by their order.

    Operators are observed once there is a large block, so that programs of small tensors pay
    nothing. What compiled code, NumPy, or a library's own kernel reads is not seen.
    """

    def __init__(self, native: Any, device: int) -> None:
        """``native`` is the module that `memprof.native.load` gives."""
        self._native = native
        self._device = device
        self._count = 0
        """Events until now."""
        self._allocs: list[Ints] = []
        """Of each call of `take` the events that are allocations."""
        self._waiting = np.zeros(0, _GONE)
        self._is_observing = False

    def begin(self) -> None:
        """Number what is allocated from now on; no event of the window has been seen."""
        self._count, self._allocs = 0, []
        self._waiting = np.zeros(0, _GONE)
        self._is_observing = False
        self._native.reads_begin(self._device)

    def note_largest(self, nbytes: int) -> None:
        """A block of so many bytes is there: more such may come."""
        if nbytes >= LEAST_BYTES and not self._is_observing:
            self._observe()

    def step_ended(self) -> None:
        """Observe from the next step on, if a large block has come in this one."""
        if not self._is_observing and self._native.reads_has_large(self._device):
            self._observe()

    def _observe(self) -> None:
        self._is_observing = True
        self._native.reads_observe(self._device)

    def end(self) -> None:
        """Follow no more; safe to call twice."""
        self._native.reads_end(self._device)
        self._allocs = []

    def take(self, events: Events) -> Sequence[LastRead]:
        """What is known of blocks that have gone; ``events`` follow those of the last call."""
        allocs = np.flatnonzero(events.action == Action.ALLOC) + self._count
        self._count += len(events)
        self._allocs.append(allocs)
        if not self._is_observing:
            self.step_ended()
            return ()
        blob = self._native.reads_take(self._device)
        gone = np.concatenate([self._waiting, np.frombuffer(blob, _GONE)])
        if not len(gone):
            return ()
        if len(self._allocs) > 1:
            self._allocs = [np.concatenate(self._allocs)]
        known = self._allocs[0]
        is_there = gone["read"] <= len(known)  # of others the events come with the next call
        self._waiting, gone = gone[~is_there], gone[is_there]
        if is_used():  # compiled code reads unseen
            return ()
        columns = (
            known[gone["made"] - 1].tolist(),
            (known[gone["read"] - 1] + 1).tolist(),
            np.minimum(1.0, gone["part"].round(4)).tolist(),
        )
        return [LastRead(*one) for one in zip(*columns, strict=True)]
