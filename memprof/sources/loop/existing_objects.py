"""The modules and optimizers that a program has when a recording begins in its midst."""

from __future__ import annotations

from typing import Any

from memprof.sources.gc_instances import instances_of, subclasses_of
from memprof.sources.guarded_access import GuardedAccess

__all__ = ["existing_optimizers", "existing_roots"]


def existing_roots(unread: GuardedAccess) -> list[Any]:
    """The modules that are in no other one, those with most below them first.

    Only what the garbage collector knows is found: not what `gc.freeze` has put aside.
    """
    import torch

    modules = instances_of(subclasses_of(torch.nn.Module))
    children: set[int] = set()
    sizes: dict[int, int] = {}

    def add_children(module: Any) -> None:
        children.update(id(one) for one in module.children())

    def count(module: Any) -> None:
        sizes[id(module)] = sum(1 for _ in module.modules())

    unread.each(add_children, modules)
    roots = [one for one in modules if id(one) not in children]
    unread.each(count, roots)
    return sorted((one for one in roots if id(one) in sizes), key=lambda one: -sizes[id(one)])


def existing_optimizers() -> list[Any]:
    """Every optimizer, whether it has stepped or not."""
    import torch

    return instances_of(subclasses_of(torch.optim.Optimizer))
