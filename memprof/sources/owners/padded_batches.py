"""How much of its batches a model is called with is padding, by its ``attention_mask``."""

from __future__ import annotations

from typing import Any

from memprof.records import PaddedBatches
from memprof.sources.guarded_access import plain_attributes
from memprof.sources.loop.loop_watch import Listener, LoopWatch

__all__ = ["PaddedBatchesWatch"]

_MASK = "attention_mask"
"""The parameter of transformers' models, and of others that are called as these are."""
_MOST_CALLS = 512
"""Calls that are looked at; each takes some 10 µs."""
_MOST_VALUES = 1 << 20
"""Values of a mask, above which looking at them takes milliseconds."""


class PaddedBatchesWatch(Listener):
    """Listens to outermost calls and looks at the masks of the CPU that they are given.

    A mask on a device is left alone: reading it would wait for the device. NumPy looks through the
    mask's own memory, so that torch allocates nothing for it.
    """

    def __init__(self, loop_watch: LoopWatch) -> None:
        """No model was called."""
        self._guard = loop_watch.guard
        self._calls = self._sequences = self._places = self._longest = 0
        self._last = PaddedBatches()

    def take(self) -> PaddedBatches | None:
        """What is known by now; None where that is what it was at the last call."""
        record = PaddedBatches(self._calls, self._sequences, self._places, self._longest)
        last, self._last = self._last, record
        return record if record != last else None

    # Listener of the loop watch.

    def outermost_call(self, module: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        """Its mask, where it has one, says how many places its sequences use."""
        if self._calls >= _MOST_CALLS:
            return
        # A model around one of transformers' is handed the whole batch.
        batches = [one for one in (kwargs, *args) if type(one) is dict]
        masks = [one[_MASK] for one in batches if _MASK in one]
        if masks:
            with plain_attributes():
                self._guard.each(self._see, masks[:1])

    def _see(self, mask: Any) -> None:
        import torch

        # While a call is traced even a size is a tensor, and NumPy's look would be warned of.
        if type(mask) is not torch.Tensor or torch._C._get_tracing_state() is not None:
            return
        if torch._C._functorch.is_functorch_wrapped_tensor(mask):  # of `vmap`: it has no memory
            return
        if not mask.is_cpu or mask.ndim != 2:
            return
        if mask.is_floating_point() or not 0 < mask.numel() <= _MOST_VALUES:
            return
        used = mask.numpy().any(axis=0).nonzero()[0]
        if not len(used):
            return
        (sequences, places), longest = mask.shape, int(used[-1] - used[0]) + 1
        if not self._calls or longest * self._places > self._longest * places:
            self._places, self._longest = places, longest
        self._sequences = max(self._sequences, sequences)
        self._calls += 1
