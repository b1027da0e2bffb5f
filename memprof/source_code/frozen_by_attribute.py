"""Statements that were to freeze parameters, and set an attribute that nothing reads."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from difflib import SequenceMatcher
from typing import NamedTuple

from memprof.source_code.program import FUNCTIONS, Place, Program, called_name
from memprof.source_code.values import values_of

__all__ = ["FreezingAttribute", "freezing_attributes"]

_MODULES_WITHIN = frozenset(("children", "modules"))
"""Methods that give the modules below one."""
_PARAMETERS = frozenset(("named_parameters", "parameters"))
"""Methods that give a module's parameters."""
_ATTRIBUTE = "requires_grad"
_ALIKE = 0.85
"""Of the letters in their order: ``require_grad`` has 0.96, and ``grad`` 0.47."""


class FreezingAttribute(NamedTuple):
    """``encoder.requires_grad = False``, and the modules that it is set of."""

    place: Place
    receiver: ast.expr
    modules: frozenset[str]
    """Paths of them."""
    name: str = _ATTRIBUTE
    """The attribute that is set."""
    meant: str = ""
    """The attribute of parameters that it misspells; empty where it is of a module."""


def freezing_attributes(program: Program, paths: Collection[str]) -> Iterator[FreezingAttribute]:
    """Every such statement of a program, by the paths of the modules that ran.

    A parameter has such an attribute, and is frozen by it: what is no module by its name is none of
    these, unless the attribute is misspelled.
    """
    for node in program.nodes:
        if not isinstance(node, ast.Assign) or not _is_false(node.value):
            continue
        place = program.place(node)
        if place is None:
            continue
        for target in node.targets:
            if not isinstance(target, ast.Attribute):
                continue
            if target.attr == _ATTRIBUTE:
                modules = frozenset(_modules(place, target.value, paths))
                if modules:
                    yield FreezingAttribute(place, target.value, modules)
            elif _is_misspelled(target.attr):
                modules = frozenset(_modules_of_parameter(place, target.value, paths))
                if modules:
                    yield FreezingAttribute(
                        place, target.value, modules, target.attr, meant=_ATTRIBUTE
                    )


def _is_misspelled(name: str) -> bool:
    """Whether an attribute is nearly the one that freezes: ``require_grad``, ``requires_gradient``.

    ``requires_grad_`` is a method, and set by nobody.
    """
    is_like = SequenceMatcher(None, name.lower(), _ATTRIBUTE).ratio() >= _ALIKE
    return is_like and name != f"{_ATTRIBUTE}_"


def _modules_of_parameter(
    place: Place, parameter: ast.expr, paths: Collection[str]
) -> Iterator[str]:
    """Paths of the modules whose parameters a loop goes through, without those put in afterwards.

    A head is put in place of another one when the rest is frozen: ``model.fc = nn.Linear(…)``.
    """
    iterated = _iterated(place, parameter.id) if isinstance(parameter, ast.Name) else None
    if not isinstance(iterated, ast.Call) or called_name(iterated) not in _PARAMETERS:
        return
    module = iterated.func.value if isinstance(iterated.func, ast.Attribute) else None
    if isinstance(module, ast.Attribute):
        yield from (path for path in paths if module.attr in path.split("."))
    elif isinstance(module, ast.Name):
        put_in = {
            target.attr
            for node in place.program.nodes
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
            for target in node.targets
            if isinstance(target, ast.Attribute) and not _is_self(target.value)
        }
        # Another model beside it is not the one that the loop goes through.
        roots = {path.partition(".")[0] for path in paths if put_in & set(path.split("."))}
        for path in paths:
            if path.partition(".")[0] in roots and not put_in & set(path.split(".")):
                yield path


def _is_self(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id == "self"


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
        if isinstance(node, ast.For) and _binds(node.target, name):
            return node.iter
    return None


def _binds(target: ast.expr, name: str) -> bool:
    """Whether a loop binds a name: ``for p in …``, ``for _, p in …``."""
    targets = target.elts if isinstance(target, ast.Tuple) else [target]
    return any(isinstance(one, ast.Name) and one.id == name for one in targets)


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
