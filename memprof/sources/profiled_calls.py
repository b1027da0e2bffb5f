"""How many calls of a model torch's profiler records, which keeps each of their operators."""

from __future__ import annotations

import time
from typing import Any

from memprof.records import Finding
from memprof.sources.loop.loop_watch import Listener, LoopWatch

__all__ = ["ProfiledCallsWatch"]


class ProfiledCallsWatch(Listener):
    """Listens to outermost calls and asks whether a profiler of torch is on: 0.2 µs for each."""

    def __init__(self, loop_watch: LoopWatch) -> None:
        """No model was called."""
        import torch

        self._loop_watch = loop_watch
        self._is_on = getattr(torch.autograd, "_profiler_enabled", lambda: False)
        self._calls = self._profiled = self._told_calls = 0
        self._first_step = -1
        """In which a profiler was on."""

    def take(self) -> Finding | None:
        """What is known by now; None where no call was profiled, or came since the last time."""
        if not self._profiled or self._calls == self._told_calls:
            return None
        self._told_calls = self._calls
        return Finding(
            "profiled",
            device="host",
            step=self._first_step,
            time_us=time.time_ns() // 1000,
            count=self._profiled,
            details={"calls": self._calls},
        )

    # Listener of the loop watch.

    def outermost_call(self, module: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        """One more, profiled or not."""
        self._calls += 1
        if self._is_on():
            self._first_step = self._loop_watch.step if not self._profiled else self._first_step
            self._profiled += 1
