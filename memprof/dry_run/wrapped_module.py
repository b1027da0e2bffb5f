"""Functions of another library's module that are wrapped for a while, whenever it is imported."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, ClassVar

from memprof.cpython.import_hook import ImportWatch

__all__ = ["WrappedModule"]


class WrappedModule(ABC):
    """Wraps functions of one module from `open` to `close`, without importing it."""

    name: ClassVar[str]
    """The module's, in full."""

    def __init__(self) -> None:
        """Nothing is wrapped before `open`."""
        self._watch: ImportWatch | None = None
        self._undo: list[Callable[[], None]] = []

    def open(self) -> None:
        """Begin, now or when the module is imported."""
        if self.name in sys.modules:
            self._imported()
        else:
            self._watch = ImportWatch(self.name, self._imported)
            self._watch.start()

    def close(self) -> None:
        """Leave the module as it was."""
        if self._watch is not None:
            self._watch.stop()
        while self._undo:
            self._undo.pop()()

    @abstractmethod
    def wrap(self, module: ModuleType) -> None:
        """Call `wrap_function` for what is to be wrapped; ``module`` has just been imported."""

    def wrap_function(
        self, owner: object, name: str, wrapper: Callable[[Callable[..., Any]], object]
    ) -> None:
        """Put ``wrapper`` of the function in its place until `close`."""
        original = getattr(owner, name)
        setattr(owner, name, wrapper(original))
        self._undo.append(partial(setattr, owner, name, original))

    def _imported(self) -> None:
        self.wrap(sys.modules[self.name])
