"""A limit for work that may take a share of the time: repeated once its last cost is paid off."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Throttle"]


class Throttle:
    """Calls what it is given at most so often that it takes ``share`` of the time."""

    def __init__(self, share: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._share = share
        self._clock = clock
        self._again_s = 0.0

    def reset(self) -> None:
        """The next call goes through."""
        self._again_s = 0.0

    def __call__(self, work: Callable[[], None]) -> None:
        """Do ``work``, or nothing if it is too soon."""
        began_s = self._clock()
        if began_s >= self._again_s:
            work()
            ended_s = self._clock()
            self._again_s = ended_s + (ended_s - began_s) / self._share
