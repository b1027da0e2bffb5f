"""The objects of some types that the garbage collector knows; asks nothing of any of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from memprof.cpython.object_addresses import exact_instances
from memprof.cpython.tracked_objects import tracked_objects

__all__ = ["instances_of", "subclasses_of", "young_instances_of"]


def instances_of(kinds: Iterable[type]) -> list[Any]:
    """Every object of exactly one of ``kinds``, in the collector's order.

    All objects are listed and their types compared. To ask the collector who refers to sixteen
    classes takes half as long again: it compares all that an object refers to with each of them.
    """
    return exact_instances(tracked_objects().objects, kinds)


def young_instances_of(kinds: Iterable[type]) -> list[Any]:
    """Those that no full collection has looked at yet."""
    # Not [*a, *b]: the list that is being built would find itself, a cycle that keeps it all.
    return exact_instances(tracked_objects(0).objects + tracked_objects(1).objects, kinds)


def subclasses_of(kind: type) -> list[type]:
    """A type and all that is derived from it."""
    by_id: dict[int, type] = {id(kind): kind}
    waiting = [kind]
    while waiting:
        children: list[type] = type.__subclasses__(waiting.pop())
        for child in children:
            if id(child) not in by_id:
                by_id[id(child)] = child
                waiting.append(child)
    return list(by_id.values())
