"""When a step of a training or inference loop ends: marks, optimizers or outermost module calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memprof.sources.cycles import Cycle

__all__ = ["Steps"]

_UNDECIDED_CALLS = 8
"""So many calls in training mode without a gradient are inference that forgot `no_grad`."""


class Steps:
    """Counts steps, and tells when one has ended.

    An explicit mark rules out optimizers and modules from then on, an optimizer's step the modules.
    The first end that was found without a mark stays open until the next iteration begins: a mark
    that follows it at once means the same end, and what lies between belongs to step 0.
    """

    def __init__(self, on_step: Callable[[int], None]) -> None:
        self.current = 0
        self.explicit = False
        """A mark was seen."""
        self.optimized = False
        """An optimizer has stepped."""
        self.open_end = False
        """The first end was found and is not told yet."""
        self._on_step = on_step
        self._automatic = 0
        self._undecided = 0
        self._optimizers = Cycle()
        self._calls = Cycle()

    def mark(self) -> None:
        """An explicit mark."""
        counted = not self.explicit and self._automatic == 1 and not self.open_end
        self.explicit = True
        self.open_end = False
        if not counted:  # else an optimizer or a module has just ended this very iteration
            self._end()

    def optimizer_ended(self, optimizer: object) -> None:
        """An optimizer has stepped."""
        self.optimized = True
        if not self.explicit and self._optimizers.ends(optimizer):
            self._automatic_end()

    def call_ended(self, module: Any, *, with_gradients: bool) -> None:
        """An outermost module call has returned."""
        if self.explicit or self.optimized:
            return
        if with_gradients and self._expects_training(module):
            return
        if self._calls.ends(module):
            self._automatic_end()

    def settle(self) -> None:
        """The next iteration has begun: an end that was still open stands."""
        if self.open_end:
            self.open_end = False
            self._automatic += 1
            self._end()

    def _expects_training(self, module: Any) -> bool:
        """Whether a backward pass and an optimizer will probably follow this call."""
        trained = next((p for p in module.parameters() if p.requires_grad), None)
        if not module.training or trained is None:
            return False
        self._undecided = 0 if trained.grad is not None else self._undecided + 1
        return self._undecided < _UNDECIDED_CALLS

    def _automatic_end(self) -> None:
        if self._automatic == 0 and not self.open_end:
            self.open_end = True
            return
        self.settle()
        self._automatic += 1
        self._end()

    def _end(self) -> None:
        ended = self.current
        self.current = ended + 1
        self._on_step(ended)
