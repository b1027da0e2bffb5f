"""When a step of a training or inference loop ends: marks, optimizers or outermost module calls."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from memprof.sources.autograd import gradient_of
from memprof.sources.loop.iteration_detector import IterationDetector

__all__ = ["Steps"]

_UNDECIDED_CALLS = 8
"""So many calls in training mode without a gradient are inference that forgot `no_grad`."""

_UNDECIDED_CONTINUED = 1000
"""The same for calls that go on with what a call before them made: a sequence may be as long."""

_MOST_MODULES = 256


class Steps:
    """Counts steps, and tells when one has ended.

    An explicit mark rules out optimizers and modules from then on, an optimizer's step the modules.
    Where a program changes parameters by hand, a step ends as the changed module is called again.
    The first end that was found without a mark stays open until the next iteration begins: a mark
    that follows it at once means the same end, and what lies between belongs to step 0.
    """

    def __init__(self, on_step: Callable[[int], None]) -> None:
        self.current = 0
        self.explicit = False
        """A mark was seen."""
        self.optimized = False
        """An optimizer has begun to step."""
        self.open_end = False
        """The first end was found and is not told yet."""
        self._on_step = on_step
        self._automatic = 0
        self._undecided = self._continued = 0
        self._continues = False
        self._passes = 0
        self._optimizers = IterationDetector()
        self._calls = IterationDetector()
        self._trained: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._by_hand: weakref.ref[Any] | None = None

    def mark(self) -> None:
        """An explicit mark."""
        counted = not self.explicit and self._automatic == 1 and not self.open_end
        self.explicit = True
        self.open_end = False
        if not counted:  # else an optimizer or a module has just ended this very iteration
            self._end()

    def optimizer_began(self) -> None:
        """An optimizer begins to step; its closure may call modules."""
        self.settle()
        self.optimized = True

    def optimizer_ended(self, optimizer: object, passes: int = 0) -> None:
        """An optimizer has stepped; ``passes`` is another number when a forward pass ran before."""
        anew, self._passes = passes != self._passes, passes
        if not self.explicit and self._optimizers.ends(optimizer, anew=anew):
            self._automatic_end()

    def call_began(self, module: Any, *, continues: bool = False) -> None:
        """An outermost module call begins; ``continues``: with what another call has made."""
        self.settle()
        self._continues = continues
        if self.explicit or self.optimized or not self._is_changed(module):
            return
        if self._updated_by_hand() is None:
            self._by_hand = weakref.ref(module)
        if self._updated_by_hand() is module:  # of several modules one tells
            self._automatic_end()
            self.settle()

    def call_ended(self, module: Any, *, with_gradients: bool) -> None:
        """An outermost module call has returned."""
        if self.explicit or self.optimized:
            return
        if with_gradients and self._expects_training(module):
            return
        if self._updated_by_hand() is not None:
            return
        if self._calls.ends(module):
            self._automatic_end()

    def skip(self, steps: int) -> None:
        """Go on ``steps`` further, which nobody has counted and nobody is told of."""
        self.settle()
        self.current += steps
        self._automatic += steps
        self._continues = False

    def settle(self) -> None:
        """The next iteration has begun: an end that was still open stands."""
        if self.open_end:
            self.open_end = False
            self._automatic += 1
            self._end()

    def _expects_training(self, module: Any) -> bool:
        """Whether a backward pass and an optimizer will probably follow this call."""
        trained = _first_trained(module)
        if not module.training or trained is None:
            return False
        if len(self._trained) >= _MOST_MODULES:
            self._trained.clear()
        self._trained[id(module)] = weakref.ref(module), trained._version
        if gradient_of(trained) is not None:
            self._undecided = self._continued = 0
        elif self._continues:
            self._continued += 1
            return self._continued < _UNDECIDED_CONTINUED
        else:
            self._undecided += 1
        return self._undecided < _UNDECIDED_CALLS

    def _updated_by_hand(self) -> Any:
        return self._by_hand() if self._by_hand is not None else None

    def _is_changed(self, module: Any) -> bool:
        """Whether its parameters are others than when a call in training ended, by `_version`."""
        ref, version = self._trained.get(id(module), (None, 0))
        trained = _first_trained(module) if ref is not None and ref() is module else None
        return trained is not None and trained._version != version

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


def _first_trained(module: Any) -> Any:
    return next((p for p in module.parameters() if p.requires_grad), None)
