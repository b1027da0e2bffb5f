"""Which calls of models were given what takes a gradient, so that a graph leads on from them."""

from __future__ import annotations

from typing import Any

from memprof.records import GraphInputs
from memprof.sources.autograd import may_take_gradient
from memprof.sources.loop.loop_watch import Listener, LoopWatch

__all__ = ["GraphInputsWatch"]

_MOST_PLACES = 256
"""Lines that call a module, of all modules; a program has a few."""


class GraphInputsWatch(Listener):
    """Listens to outermost calls with gradients on and asks what they are given."""

    def __init__(self, loop_watch: LoopWatch) -> None:
        """No model was called."""
        self._loop_watch = loop_watch
        self._counts: dict[tuple[str, str, int], list[int]] = {}
        """By the module's path and the line: calls, and those that were given something."""
        self._last = GraphInputs()

    def take(self) -> GraphInputs | None:
        """What is known by now; None where that is what it was at the last call."""
        counts = list(self._counts.items())
        record = GraphInputs(
            modules=[module for (module, _, _), _ in counts],
            files=[filename for (_, filename, _), _ in counts],
            lines=[line for (_, _, line), _ in counts],
            calls=[calls for _, (calls, _) in counts],
            given=[given for _, (_, given) in counts],
        )
        last, self._last = self._last, record
        return record if record != last else None

    # Listener of the loop watch.

    def outermost_call(self, module: Any, args: Any, kwargs: Any) -> None:
        """Whether anything of what it is given takes a gradient."""
        import torch

        if not torch.is_grad_enabled():
            return
        key = (self._loop_watch.modules.path(module), *self._loop_watch.called_at())
        counts = self._counts.get(key)
        if counts is None:
            if len(self._counts) >= _MOST_PLACES:
                return
            counts = self._counts[key] = [0, 0]
        is_given = may_take_gradient((args, kwargs))
        counts[0] += 1
        counts[1] += is_given
