"""Dispatch modes in the threads of a program beside the recorded one, each pushed and popped there.

A mode is a thread's own, and no thread can push one for another. So one is pushed by the thread
itself: as it starts, by a profile function that runs once, and when it calls a model.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from memprof.cpython.signal_errors import (
    covers_entry,
    guarded_errors,
    is_of_signal,
    raised_at_death,
)
from memprof.sources.cpu.dispatch_mode import Watch

__all__ = ["ThreadModes"]


_here = threading.local()
"""In each thread the mode that lies on its stack, as ``pushed``."""


class _Pushed:
    """A mode on a thread's stack. It goes as the thread ends, while the thread can run Python.

    Torch would drop it later, when the interpreter may be ending: that kills the process.
    """

    def __init__(self, watch: Watch, owner: ThreadModes) -> None:
        self.watch, self.owner = watch, weakref.ref(owner)
        watch.push()

    @covers_entry
    def __del__(self) -> object:
        try:
            self.watch.discard()
        except BaseException as error:
            if is_of_signal(error):
                return self.__del__(), raised_at_death(error)
            raise
        return None


class ThreadModes:
    """Shows operators of other threads to ``dispatch`` while it is open."""

    def __init__(self, dispatch: Callable[..., Any]) -> None:
        """Nothing is pushed before `open`."""
        self._first = Watch(dispatch)
        self._own = threading.get_ident()
        self._watches: dict[int, weakref.ref[Watch]] = {}
        """By ``id``. Each takes itself out in C, where no handler of a signal comes between."""
        self._lock = threading.Lock()
        self._is_open = False

    def open(self) -> None:
        """Push one in every thread that is started from now on."""
        self._is_open = True
        if threading._profile_hook is None:
            threading.setprofile(self._on_call)

    def close(self) -> None:
        """Show nothing any more; each mode leaves its thread with the next operator there."""
        self._is_open = False
        if threading._profile_hook == self._on_call:
            threading.setprofile(None)
        with self._lock:
            watches = [reference() for reference in list(self._watches.values())]
        for watch in watches:
            if watch is not None:
                watch.pop()

    def join(self) -> None:
        """Push one in the calling thread, unless it is there or the thread is the recorded one."""
        if not self._is_open or threading.get_ident() == self._own:
            return
        pushed = getattr(_here, "pushed", None)
        if pushed is not None and pushed.owner() is self:
            return
        pushed = _Pushed(self._first.another(), self)
        with self._lock:
            if self._is_open:
                key = id(pushed.watch)
                self._watches[key] = weakref.ref(pushed.watch, partial(self._watches.pop, key))
                _here.pushed = pushed  # else it goes at once

    def _on_call(self, _frame: Any, _event: str, _argument: Any) -> None:
        """A thread has begun to run: torch calls nothing there, so this is the moment."""
        sys.setprofile(None)
        try:
            if not threading.current_thread().name.startswith("memprof"):
                self.join()
        except guarded_errors():  # it would be raised into the job's thread
            pass
