"""Being told when torch.compile begins and ends to trace, in whatever thread."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from memprof.cpython.import_hook import ImportWatch

__all__ = ["CompileWatch", "is_used", "skips_what_is_called"]

_CALLBACKS = "torch._dynamo.callback"
"""Has the lists of what torch.compile calls; loaded before anything can be compiled."""


def is_used() -> bool:
    """Whether the program has called torch.compile."""
    backends = getattr(sys.modules.get("torch._dynamo.eval_frame"), "cached_backends", {})
    return any(backend is not None for backend in list(backends.values()))


def skips_what_is_called() -> bool:
    """Whether torch.compile can be told to leave a function alone with all that it calls: 2.7."""
    from torch._C._dynamo import eval_frame

    return hasattr(eval_frame, "set_code_exec_strategy")


class CompileWatch:
    """Calls ``began`` before the first of the compilations under way, ``ended`` after the last.

    torch.compile is not imported from here: where the program does it later, that is noticed. Its
    ``reset()`` forgets whoever wants to be called; this watch stays.
    """

    def __init__(
        self,
        began: Callable[[], None],
        on_end: Callable[[], None],
        on_load: Callable[[], None] = lambda: None,
    ) -> None:
        """None of them may raise; nothing is watched before `open`.

        ``on_load`` is called once torch.compile is loaded, before anything is compiled.
        """
        self._began, self._on_end, self._on_load = began, on_end, on_load
        self._lock = threading.Lock()
        self._running = 0
        self._is_open = False
        self._handler: Any = None
        self._clear: Callable[[], None] | None = None
        self._imports: ImportWatch | None = None

    def open(self) -> None:
        """Watch from now on."""
        self._is_open = True
        if not self.look():
            self._imports = ImportWatch(_CALLBACKS, self._register)
            self._imports.start()

    def look(self) -> bool:
        """Whether torch.compile is loaded; if so it is watched now."""
        if self._handler is None and self._is_open:
            self._register()
        return self._handler is not None

    def close(self) -> None:
        """Watch no more; safe to call twice."""
        self._is_open = False
        imports, self._imports = self._imports, None
        if imports is not None:
            imports.stop()
        handler, self._handler = self._handler, None
        if handler is None:
            return
        for callbacks, ours in self._callbacks(handler):
            if ours in callbacks:
                callbacks.remove(ours)
        if vars(handler).get("clear") is self._clear:
            del handler.clear

    def _register(self) -> None:
        handler = getattr(sys.modules.get(_CALLBACKS), "callback_handler", None)
        if handler is None or not self._is_open:
            return
        self._handler = handler
        self._on_load()
        self._append()
        original = handler.clear

        def clear() -> None:
            try:
                original()
            finally:
                if self._handler is handler:
                    self._append()

        self._clear = handler.clear = clear

    def _append(self) -> None:
        for callbacks, ours in self._callbacks(self._handler):
            if ours not in callbacks:
                callbacks.append(ours)

    def _callbacks(self, handler: Any) -> list[tuple[list[Any], Any]]:
        return [(handler.start_callbacks, self._start), (handler.end_callbacks, self._end)]

    def _start(self, *_: Any) -> None:
        """Called by torch, with what is compiled from 2.9 on; before 2.5 once for each thread."""
        with self._lock:
            self._running += 1
            first = self._running == 1
        if first:
            self._began()

    def _end(self, *_: Any) -> None:
        with self._lock:
            last = self._running == 1
            self._running = max(0, self._running - 1)  # else it began before it was watched
        if last:
            self._on_end()
