"""Looking into objects without running their code: slots, instance dicts, built-in containers."""

from __future__ import annotations

import collections
import gc
import types
from collections.abc import Callable
from typing import Any

__all__ = [
    "SEQUENCES",
    "SETS",
    "bound_of",
    "instance_dict",
    "is_one_of",
    "is_plain_container",
    "qualified_name",
    "refers",
    "size_of",
    "text_of",
    "type_mro",
]

SEQUENCES = (list, tuple, collections.deque)
SETS = (set, frozenset)


def is_one_of(kind: type, kinds: tuple[type, ...]) -> bool:
    """``kind in kinds`` by identity: a metaclass may define ``__eq__``."""
    return any(kind is one for one in kinds)


def text_of(name: object) -> str:
    """A key of a namespace as text; one that is no string, by its type alone."""
    return str.__str__(name) if issubclass(type(name), str) else f"<{type(name).__name__}>"


def type_mro(kind: type) -> tuple[type, ...]:
    """``kind.__mro__`` past any metaclass."""
    mro: tuple[type, ...] = type.__dict__["__mro__"].__get__(kind)
    return mro


def instance_dict(one: object) -> dict[str, object] | None:
    """The ``__dict__`` of an object where C provides it; ``None`` where it has none."""
    for kind in type_mro(type(one)):
        descriptor = type.__dict__["__dict__"].__get__(kind).get("__dict__")
        if is_one_of(type(descriptor), (types.GetSetDescriptorType, types.MemberDescriptorType)):
            variables = descriptor.__get__(one)
            return variables if type(variables) is dict else None
    return None


_LENGTHS: dict[int, Callable[[Any], int]] = {
    id(kind): kind.__dict__["__len__"] for kind in (dict, *SEQUENCES, *SETS)
}


def is_plain_container(one: object) -> bool:
    """Whether it is a built-in container and no instance of a subclass of one."""
    return id(type(one)) in _LENGTHS


def refers(owner: object, value: object) -> bool:
    """Whether one object is among those that the other tells the collector of."""
    return any(one is value for one in gc.get_referents(owner))


def size_of(one: object) -> int:
    """The length of a built-in container, -1 for everything else."""
    length = _LENGTHS.get(id(type(one)))  # by id: a metaclass may define ``__hash__``
    if length is not None:
        return length(one)
    for kind in (dict, *SEQUENCES, *SETS):
        if issubclass(type(one), kind):
            return int(kind.__len__(one))  # type: ignore[arg-type]
    return -1


def bound_of(one: object) -> int:
    """The most a container can hold; -1 where it has no bound."""
    if not issubclass(type(one), collections.deque):
        return -1
    limit = collections.deque.__dict__["maxlen"].__get__(one)
    return -1 if limit is None else int(limit)


def qualified_name(function: object) -> str:
    """The name of a function or class, without reading its attributes."""
    if type(function) is types.FunctionType:
        return function.__qualname__.replace("<locals>.", "")
    if issubclass(type(function), type):
        return str(type.__dict__["__qualname__"].__get__(function)).replace("<locals>.", "")
    return type(function).__name__
