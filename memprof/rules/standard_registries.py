"""Registries of Python's standard library that keep a callback, and what it refers to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from memprof.records import Holder
from memprof.reference_chain import Link, LinkKind

__all__ = ["Registration", "registration"]


@dataclass(frozen=True, slots=True)
class _Registry:
    """What a link to it looks like, how it is filled, and the way out of it."""

    name: str
    """As one writes it: ``weakref.finalize``."""
    kinds: frozenset[LinkKind]
    attributes: frozenset[str]
    owners: frozenset[str]
    """Classes, or modules, that have such an attribute."""
    register: tuple[str, ...]
    """Functions and methods that put something in."""
    release: str
    """The call that takes it out; ``{}`` stands for what was put in."""
    until: str
    """For how long it keeps it otherwise."""


_END = "to the end of the process"
_REGISTRIES = (
    _Registry(
        "weakref.finalize",
        frozenset({LinkKind.CLASS_ATTRIBUTE}),
        frozenset({"_registry"}),
        frozenset({"finalize"}),
        ("finalize",),
        "finalizer.detach()",
        "as long as the object lives that it watches",
    ),
    _Registry(
        "logging",
        frozenset({LinkKind.ATTRIBUTE}),
        frozenset({"handlers"}),
        frozenset({"Logger", "RootLogger"}),
        ("addHandler",),
        "logger.removeHandler({})",
        _END,
    ),
    _Registry(
        "logging",
        frozenset({LinkKind.ATTRIBUTE}),
        frozenset({"filters"}),
        frozenset({"Logger", "RootLogger"}),
        ("addFilter",),
        "logger.removeFilter({})",
        _END,
    ),
    _Registry(
        "gc.callbacks",
        frozenset({LinkKind.GLOBAL}),
        frozenset({"callbacks"}),
        frozenset({"gc"}),
        ("append", "insert"),
        "gc.callbacks.remove({})",
        _END,
    ),
    _Registry(
        "threading.Timer",
        frozenset({LinkKind.THREAD, LinkKind.ATTRIBUTE}),
        frozenset({"function", "args", "kwargs"}),
        frozenset({"Timer"}),
        ("Timer",),
        "timer.cancel()",
        "until it has run",
    ),
    _Registry(
        "sched.scheduler",
        frozenset({LinkKind.ATTRIBUTE}),
        frozenset({"_queue"}),
        frozenset({"scheduler"}),
        ("enter", "enterabs"),
        "scheduler.cancel(event)",
        "until it has run",
    ),
)


@dataclass(frozen=True, slots=True, eq=False)
class Registration:
    """What one of those registries keeps of the program."""

    registry: _Registry
    holder: Holder
    function: str
    """The bound method or the function that was put in, by its qualified name; empty where it is
    another object or an argument."""
    is_method: bool

    @property
    def is_finalizer(self) -> bool:
        """Whether it is called when an object is gone."""
        return self.registry.name == "weakref.finalize"


def registration(holders: Iterable[Holder]) -> Registration | None:
    """Return the first registry that a chain of references goes through, and what it keeps."""
    for holder in holders:
        for at, link in enumerate(holder.links):
            for registry in _REGISTRIES:
                if _leads_to(registry, link):
                    below = _callback(holder.links[at + 1 :])
                    method = below is not None and below.kind == LinkKind.BOUND_METHOD
                    name = below.type_name if below is not None else ""
                    return Registration(registry, holder, name, method)
    return None


def _leads_to(registry: _Registry, link: Link) -> bool:
    return (
        link.kind in registry.kinds
        and link.name in registry.attributes
        and link.type_name in registry.owners
    )


def _callback(below: Iterable[Link]) -> Link | None:
    """The first link below the registry's own containers, if that is of a function."""
    inner = {LinkKind.ITEM}
    for link in below:
        if link.kind in inner or link.type_name == "_Info":
            continue
        is_function = link.kind in {LinkKind.BOUND_METHOD, LinkKind.CLOSURE, LinkKind.PARTIAL}
        return link if is_function else None
    return None
