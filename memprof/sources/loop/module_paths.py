"""The paths of modules: a root's class name and the name that `named_modules` gives below it."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any

__all__ = ["ModulePaths"]


class ModulePaths:
    """Names every module that was called, holding none of them.

    A module that is called and lies below no module that is known is a root. A second living root
    of the same class is ``Net#2``. A module reached under two names keeps the first.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._roots: list[tuple[weakref.ref[Any], str]] = []

    def path(self, module: Any, caller_id: int = 0, prefix: str = "") -> str:
        """Where ``module`` lies; ``caller_id`` is the ``id`` of the module that calls it.

        ``prefix`` names a root that stands for another module (a replica of `nn.DataParallel`).
        """
        entry = self._entries.get(id(module))
        if entry is None and self._extend(caller_id):  # it may have been added since
            entry = self._entries.get(id(module))
        return entry[1] if entry is not None else self._add_root(module, prefix)

    @property
    def table(self) -> dict[int, tuple[weakref.ref[Any], str]]:
        """Every known module with its path, by ``id``; looked into at every call of a module."""
        return self._entries

    def roots(self) -> Iterator[tuple[Any, str]]:
        """Every living root with its path, in the order of their first calls."""
        for ref, path in self._roots:
            module = ref()
            if module is not None:
                yield module, path

    def living(self) -> Iterator[tuple[Any, str]]:
        """Every living module that was called, or lay below one that was, with its path."""
        for ref, path in list(self._entries.values()):
            module = ref()
            if module is not None:
                yield module, path

    def _add_root(self, module: Any, prefix: str) -> str:
        path = prefix or self._number(type(module).__name__)
        children = [m for m in module.modules() if m is not module]
        child_ids = {id(m) for m in children}
        self._roots = [r for r in self._roots if r[0]() is not None and id(r[0]()) not in child_ids]
        if not prefix:
            self._roots.append((weakref.ref(module), path))
        names = {r[1] for r in self._roots}
        for child in children:  # named from a root that this one contains: name it anew
            entry = self._entries.get(id(child))
            if entry is not None and not any(_below(entry[1], root) for root in names):
                del self._entries[id(child)]
        self._name(module, path)
        return self._entries[id(module)][1]

    def _extend(self, caller_id: int) -> bool:
        entry = self._entries.get(caller_id)
        caller = entry[0]() if entry is not None else None
        if entry is None or caller is None:
            return False
        self._name(caller, entry[1])
        return True

    def _name(self, root: Any, path: str) -> None:
        for name, module in root.named_modules():
            key = id(module)
            if key not in self._entries:
                ref = weakref.ref(module, partial(self._entries.pop, key))
                self._entries[key] = (ref, f"{path}.{name}" if name else path)

    def _number(self, name: str) -> str:
        names = {path for _, path in self.roots()}
        numbers = (name if n == 1 else f"{name}#{n}" for n in count(1))
        return next(path for path in numbers if path not in names)


def _below(path: str, root: str) -> bool:
    return path == root or path.startswith(root + ".")
