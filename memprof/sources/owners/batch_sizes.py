"""How many rows models are called with, with gradients on and with gradients off."""

from __future__ import annotations

from typing import Any

from memprof.records import BatchSizes
from memprof.sources.guarded_access import plain_attributes
from memprof.sources.loop.loop_watch import Listener, LoopWatch

__all__ = ["BatchSizesWatch"]


class BatchSizesWatch(Listener):
    """Listens to outermost calls; the first dimension of the first tensor is that of the rows."""

    def __init__(self, loop_watch: LoopWatch) -> None:
        """No model was called."""
        self._guard = loop_watch.guard
        self._learned = self._evaluated = 0
        self._last = BatchSizes()

    def take(self) -> BatchSizes | None:
        """What is known by now; None where that is what it was at the last call."""
        record = BatchSizes(self._learned, self._evaluated)
        last, self._last = self._last, record
        return record if record != last else None

    # Listener of the loop watch.

    def outermost_call(self, module: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        """Note the rows of what is handed over first."""
        given = next((one for one in (*args, *kwargs.values()) if one is not None), None)
        with plain_attributes():
            self._guard.each(self._see, (given,))

    def _see(self, given: Any) -> None:
        import torch

        # While a call is traced even a size is a tensor.
        if type(given) is not torch.Tensor or torch._C._get_tracing_state() is not None:
            return
        if torch._C._functorch.is_functorch_wrapped_tensor(given) or not given.dim():
            return
        rows = int(given.shape[0])
        if torch.is_grad_enabled():
            self._learned = max(self._learned, rows)
        else:
            self._evaluated = max(self._evaluated, rows)
