"""Being told when a module has been imported, without importing it oneself."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from memprof.cpython.signal_errors import guarded_errors
from memprof.log import LOG

__all__ = ["ImportWatch"]


class ImportWatch:
    """Calls ``then`` once, right after the named module was imported for the first time.

    A finder in front of ``sys.meta_path`` lets the others find the module and wraps its loader. It
    removes itself when the import is found, so it costs nothing afterwards.
    """

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        """Nothing is watched before `start`."""
        self._name = name
        self._then = then
        self._is_searching = False
        self._is_on = False

    def start(self) -> None:
        """Watch from now on."""
        self._is_on = True
        sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Watch no more; safe to call twice, and after the import."""
        self._is_on = False
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - the import system's signature
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """The import system's question: only about the watched module is there an answer."""
        if fullname != self._name or self._is_searching:
            return None
        self._is_searching = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._is_searching = False
        if spec is None or spec.loader is None:
            return None
        spec.loader = _Loader(spec.loader, self)  # type: ignore[assignment]  # a loader by duck type
        return spec

    def imported(self) -> None:
        """Called by the loader once the module's code has run."""
        if not self._is_on:
            return
        self.stop()
        try:
            self._then()
        except guarded_errors():  # it would come out of the user's `import torch`
            LOG.warning("could not start recording after import %s", self._name, exc_info=True)


class _Loader:
    """The module's own loader, which tells the watch when it is done."""

    def __init__(self, loader: object, watch: ImportWatch) -> None:
        self._loader = loader
        self._watch = watch

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)  # type: ignore[attr-defined]
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The module must find its own loader: inspect, pkgutil and zipimport ask for it.
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader  # type: ignore[assignment]
        module.__loader__ = self._loader  # type: ignore[assignment]
        self._loader.exec_module(module)  # type: ignore[attr-defined]
        self._watch.imported()
