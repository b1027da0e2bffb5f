"""When the cyclic garbage collector freed tensors: so much can be learned only while it runs."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from memprof.cpython.signal_errors import covers_entry, is_of_signal, raised_at_death
from memprof.records import Finding

__all__ = ["Collections"]

_MOST = 4096
"""Collections between two records; more are not kept, and the record says how many were lost."""


class Collections:
    """Keeps the times of collections during which recorded memory was freed.

    What was freed then, and where it was made, is read from the trace by time.
    """

    def __init__(
        self, pending: Callable[[], int], blind: Callable[[], bool] = lambda: False
    ) -> None:
        """``pending`` counts the events that wait: it changes when a tensor dies.

        While ``blind`` says that there are deaths which it does not count, every collection is kept
        that found any garbage at all.
        """
        self._pending, self._blind = pending, blind
        self._pid = os.getpid()
        self._began_us = 0
        self._before = 0
        self._rows: list[tuple[int, int, int]] = []
        self._losses = 0

    def open(self) -> None:
        """Watch the collector from now on."""
        gc.callbacks.append(self._on_collection)

    def close(self) -> None:
        """Watch no more. Safe to call twice."""
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, step: int) -> Finding | None:
        """The collections since the last call that freed something, or None."""
        rows, self._rows = self._rows, []
        loss, self._losses = self._losses, 0
        if not rows:
            return None
        started, end_times, generations = (list(column) for column in zip(*rows, strict=True))
        details: dict[str, object] = {
            "start_us": started,
            "end_us": end_times,
            "generation": generations,
            "lost": loss,
        }
        return Finding(
            "garbage", step=step, time_us=end_times[-1], count=len(rows), details=details
        )

    def _freed(self, info: Mapping[str, Any]) -> bool:
        return self._pending() != self._before or bool(info["collected"] and self._blind())

    @covers_entry
    def _on_collection(self, phase: str, info: Mapping[str, Any]) -> object:
        try:
            self._note(phase, info)
        except BaseException as error:  # the collector ignores it
            if is_of_signal(error):
                return self._on_collection(phase, info), raised_at_death(error)
            raise
        return None

    def _note(self, phase: str, info: Mapping[str, Any]) -> None:
        if os.getpid() != self._pid:
            return
        if phase == "start":
            self._before, self._began_us = self._pending(), _now_us()
        elif self._began_us and self._freed(info):
            row = (self._began_us, _now_us(), int(info["generation"]))
            has_room = len(self._rows) < _MOST
            # From here to the end at one stroke: it may be begun anew after an error.
            self._began_us = 0
            self._losses += not has_room
            self._rows += (row,) * has_room


def _now_us() -> int:
    return time.time_ns() // 1000
