"""How long a job is held up by each kind of work that memprof does in it, while it runs."""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from unittest import mock

__all__ = ["LEAK_SEARCH", "Held", "Stalls"]

LEAK_SEARCH = "leak search"
KINDS = {
    LEAK_SEARCH: ("memprof.referrers.survivor_watch:SurvivorWatch", ("step_ended", "window_ended")),
    "last leak search": ("memprof.referrers.survivor_watch:SurvivorWatch", ("close",)),
    "window begins": ("memprof.record.recording:Recording", ("begin_window",)),
    "window ends": ("memprof.record.recording:Recording", ("end_window",)),
    "look at what was recorded": ("memprof.record.recording:Recording", ("drain",)),
    "step's end, all told": ("memprof.record.session:Session", ("step_ended",)),
}
"""Kinds may lie within one another: a step's end holds most of the others."""


@dataclass(slots=True)
class Held:
    """What calls of one kind took."""

    calls: int = 0
    seconds: float = 0.0
    processor_s: float = 0.0
    """Of the thread that was held up."""
    longest_s: float = 0.0
    longest_processor_s: float = 0.0

    def add(self, other: Held) -> None:
        """Count what another one holds, too."""
        self.calls += other.calls
        self.seconds += other.seconds
        self.processor_s += other.processor_s
        self.longest_s = max(self.longest_s, other.longest_s)
        self.longest_processor_s = max(self.longest_processor_s, other.longest_processor_s)


@dataclass
class Stalls:
    """Times all kinds while it is entered.

    Raises:
        AttributeError: memprof does that kind of work under another name by now.
    """

    held: dict[str, Held] = field(default_factory=lambda: {kind: Held() for kind in KINDS})
    _patches: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Stalls:  # noqa: PYI034 - no Self in Python 3.10
        for kind, (place, names) in KINDS.items():
            module, _, owner = place.partition(":")
            cls = getattr(importlib.import_module(module), owner)
            for name in names:
                timed = self._timed(getattr(cls, name), self.held[kind])
                self._patches.enter_context(mock.patch.object(cls, name, timed))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._patches.close()

    @staticmethod
    def _timed(method: Callable[..., Any], held: Held) -> Callable[..., Any]:
        @functools.wraps(method)
        def timed(*args: Any, **kwargs: Any) -> Any:
            began_s, processor_s = time.perf_counter(), time.thread_time()
            try:
                return method(*args, **kwargs)
            finally:
                took_s, used_s = time.perf_counter() - began_s, time.thread_time() - processor_s
                held.add(Held(1, took_s, used_s, took_s, used_s))

        return timed
