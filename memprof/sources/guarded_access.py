"""Reading of the program's objects: one that raises is left out, with a note."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from memprof.cpython.signal_errors import guarded_errors

__all__ = ["GuardedAccess", "plain_attributes"]

T = TypeVar("T")
R = TypeVar("R")

_MOST = 5
"""Kinds of objects that are told; a program whose every object raises fills no file."""
_LONGEST = 200
"""Characters of an error's words."""


class GuardedAccess:
    """Objects that raised when they were looked at; the first of each kind is told.

    It may be anything: subclasses of tensors whose attributes are not there yet, views that torch
    forbids to ask for their graph, dead proxies, state that is no dict.
    """

    def __init__(self) -> None:
        """Everything could be read."""
        self._kinds: set[str] = set()
        self._waiting: list[str] = []

    def add(self, item: object, error: Exception) -> None:
        """It could not be read, or what a tuple begins with; safe for every object."""
        what = item[0] if type(item) is tuple and item else item
        kind = type.__dict__["__name__"].__get__(type(what))
        if kind not in self._kinds and len(self._kinds) < _MOST:
            self._kinds.add(kind)
            self._waiting.append(
                f"an object of type {kind} raised when it was looked at: {_words(error)}"
            )

    def each(self, look: Callable[[T], object], items: Iterable[T]) -> None:
        """Look at every item."""
        for item in items:
            try:
                look(item)
            except guarded_errors() as error:  # the program's own code may run in it
                self.add(item, error)

    def within(self, accessor: Callable[[T], Iterable[R]], items: Iterable[T]) -> Iterator[R]:
        """What every item gives, of one that raises what it gave before."""
        for item in items:
            try:
                yield from accessor(item)
            except guarded_errors() as error:  # the program's own code may run in it
                self.add(item, error)

    def notes(self) -> list[str]:
        """What was not read and not told yet."""
        waiting, self._waiting = self._waiting, []
        return waiting


def plain_attributes() -> Any:
    """A context in which looking at a tensor calls no ``__torch_function__`` of the program."""
    import torch

    return torch._C.DisableTorchFunction()


def _words(error: Any) -> str:
    try:
        text = f"{type(error).__name__}: {error}"
    except guarded_errors():  # errors can be the program's own, too
        text = "an error without words"
    return text.partition("\n")[0][:_LONGEST]
