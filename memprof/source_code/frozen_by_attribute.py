"""Statements that set ``requires_grad`` of a module, which is an attribute that nothing reads."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from typing import NamedTuple

from memprof.source_code.program import FUNCTIONS, Place, Program, called_name
from memprof.source_code.values import values_of

__all__ = ["FreezingAttribute", "freezing_attributes"]

_MODULES_WITHIN = frozenset(("children", "modules"))
"""Methods that give the modules below one."""


class FreezingAttribute(NamedTuple):
    """``encoder.requires_grad = False``, and the modules that it is set of."""

    place: Place
    receiver: ast.expr
    modules: frozenset[str]
    """Paths of them."""


def freezing_attributes(program: Program, paths: Collection[str]) -> Iterator[FreezingAttribute]:
    """Every such statement of a program, by the paths of the modules that ran.

    A parameter has such an attribute, and is frozen by it: what is no module by its name is none of
    these.
    """
    for node in program.nodes:
        if not isinstance(node, ast.Assign) or not _is_false(node.value):
            continue
        place = program.place(node)
        if place is None:
            continue
        for target in node.targets:
            if isinstance(target, ast.Attribute) and target.attr == "requires_grad":
                modules = frozenset(_modules(place, target.value, paths))
                if modules:
                    yield FreezingAttribute(place, target.value, modules)


def _is_false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is False


def _modules(place: Place, receiver: ast.expr, paths: Collection[str]) -> Iterator[str]:
    """Paths of the modules that an expression stands for, and of all that lie below them."""
    if isinstance(receiver, ast.Name):
        iterated = _iterated(place, receiver.id)
        names = {_module_iterated(iterated)} if iterated is not None else _classes(place, receiver)
    else:
        names = {receiver.attr} if isinstance(receiver, ast.Attribute) else set()
    yield from (path for path in paths if names & set(path.split(".")))


def _iterated(place: Place, name: str) -> ast.expr | None:
    """What the loop goes through whose variable a name is."""
    for node in reversed(place.around):
        if isinstance(node, FUNCTIONS):
            return None
        target = node.target if isinstance(node, ast.For) else None
        if isinstance(target, ast.Name) and target.id == name and isinstance(node, ast.For):
            return node.iter
    return None


def _module_iterated(iterated: ast.expr) -> str:
    """The name of the module whose parts are gone through; empty for parameters and others."""
    while isinstance(iterated, ast.Subscript):
        iterated = iterated.value  # the first few layers
    if isinstance(iterated, ast.Call) and called_name(iterated) in _MODULES_WITHIN:
        if not isinstance(iterated.func, ast.Attribute):
            return ""
        iterated = iterated.func.value
    return iterated.attr if isinstance(iterated, ast.Attribute) else ""


def _classes(place: Place, receiver: ast.Name) -> set[str]:
    """The classes of what a variable is bound to: ``teacher = Teacher()``, ``… .to(device)``."""
    names = set()
    for value in values_of(place, receiver.id):
        made = value
        while isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute):
            if not isinstance(made.func.value, ast.Call):
                break
            made = made.func.value
        names.add(called_name(made) if isinstance(made, ast.Call) else "")
    return names - {""}
