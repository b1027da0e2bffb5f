"""The modules and optimizers that a program has when a recording begins in its midst."""

from __future__ import annotations

from typing import Any

from memprof.sources.gc_instances import instances_of, subclasses_of
from memprof.sources.guarded_access import GuardedAccess

__all__ = ["existing_objects"]


def existing_objects(guard: GuardedAccess) -> tuple[list[Any], list[Any]]:
    """The modules that are in no other one, the largest first; and all optimizers.

    Only what the garbage collector knows is found: not what `gc.freeze` has put aside. A library
    has a thousand kinds of modules, so all objects are looked through once for their types: to ask
    who refers to so many classes takes six times as long.
    """
    import torch

    modules, optimizers = subclasses_of(torch.nn.Module), subclasses_of(torch.optim.Optimizer)
    objects = instances_of([*modules, *optimizers])
    are_modules = set(map(id, modules))
    module_objects = [one for one in objects if id(type(one)) in are_modules]
    rest = [one for one in objects if id(type(one)) not in are_modules]
    return _roots(module_objects, guard), rest


def _roots(modules: list[Any], guard: GuardedAccess) -> list[Any]:
    children: set[int] = set()
    sizes: dict[int, int] = {}

    def add_children(module: Any) -> None:
        children.update(id(one) for one in module.children())

    def count(module: Any) -> None:
        sizes[id(module)] = sum(1 for _ in module.modules())

    guard.each(add_children, modules)
    roots = [one for one in modules if id(one) not in children]
    guard.each(count, roots)
    return sorted((one for one in roots if id(one) in sizes), key=lambda one: -sizes[id(one)])
