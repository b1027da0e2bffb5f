"""Attributes that objects are given: by their own `__init__`, or by what calls their class."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memprof.source_code.idioms import last_name
from memprof.source_code.program import Place, Program, bound_names, called_name, place_of
from memprof.trace import Frame

__all__ = ["GivenAttribute", "given_attribute", "given_in_init"]

_INIT = "__init__"


@dataclass(frozen=True, slots=True, eq=False)
class GivenAttribute:
    """An attribute, and the statement of an ``__init__`` that sets it."""

    name: str
    place: Place


def given_in_init(frame: Frame) -> GivenAttribute | None:
    """``text_encoder`` of ``self.text_encoder = load()`` in an ``__init__``; None for others."""
    place = place_of(frame)
    if place is None or place.function is None or place.function.name != _INIT:
        return None
    targets = bound_names(place.statement) if isinstance(place.statement, ast.Assign) else []
    if len(targets) != 1 or not isinstance(targets[0], ast.Attribute):
        return None
    is_own = isinstance(targets[0].value, ast.Name) and targets[0].value.id == "self"
    return GivenAttribute(targets[0].attr, place) if is_own else None


def given_attribute(made_by: Sequence[Frame], programs: Sequence[Program]) -> GivenAttribute | None:
    """The attribute that an object of the program's keeps what a stack made in.

    Of ``Trainer(reference=load())`` the one that the ``__init__`` of `Trainer` sets to its argument
    ``reference``; also where a variable is handed over, ``Trainer(model, reference)``. A module's
    attributes are parts of a model.

    Args:
        made_by: the frames that made the value, innermost first.
        programs: the program's files.
    """
    for inner, frame in enumerate(reversed(made_by), start=1):
        own = given_in_init(frame)
        if own is not None:
            return None if _is_module(programs, own.place.class_) else own
        place = place_of(frame)
        if place is None or inner == len(made_by):
            continue
        called = made_by[-inner - 1].name.rpartition(".")[2]
        for call, argument in _arguments_made(place, frame.line, called):
            attribute = _set_by_class(programs, call, argument)
            if attribute is not None:
                return attribute
    return None


def _arguments_made(place: Place, line: int, called: str) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Calls that are handed what a call of a function on a line returns, with the argument."""
    names = [one.id for one in bound_names(place.statement) if isinstance(one, ast.Name)]
    makes = any(_is_on(node, line, called) for node in ast.walk(place.statement))
    for node in ast.walk(place.scope):
        if not isinstance(node, ast.Call):
            continue
        for argument in (*node.args, *(one.value for one in node.keywords)):
            is_variable = isinstance(argument, ast.Name) and names == [argument.id] and makes
            if is_variable or _is_on(argument, line, called):
                yield node, argument


def _is_on(node: ast.AST, line: int, called: str) -> bool:
    if not isinstance(node, ast.Call) or called_name(node) != called:
        return False
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _set_by_class(
    programs: Sequence[Program], call: ast.Call, argument: ast.expr
) -> GivenAttribute | None:
    """The attribute that the class which is called sets to an argument; None without one."""
    name = called_name(call)
    for program in programs:
        for node in program.nodes:
            if not isinstance(node, ast.ClassDef) or node.name != name:
                continue
            for function in node.body:
                if _is_module(programs, node):
                    return None
                if isinstance(function, ast.FunctionDef) and function.name == _INIT:
                    parameter = _parameter(function, call, argument)
                    return _set_to(program, function, parameter) if parameter else None
    return None


def _is_module(programs: Sequence[Program], class_: ast.ClassDef | None) -> bool:
    """Whether a class is derived from ``nn.Module``, by the names of what it is derived from."""
    bases = {last_name(ast.unparse(base)) for base in class_.bases} if class_ is not None else set()
    if any(base.endswith("Module") for base in bases):
        return True
    return any(
        isinstance(node, ast.ClassDef)
        and node.name in bases
        and node is not class_
        and _is_module(programs, node)
        for program in programs
        for node in program.nodes
    )


def _parameter(function: ast.FunctionDef, call: ast.Call, argument: ast.expr) -> str:
    """The name that a function has for an argument of its call; the first is the object."""
    for keyword in call.keywords:
        if keyword.value is argument:
            return keyword.arg or ""
    at = next((at for at, one in enumerate(call.args) if one is argument), -1)
    names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)][1:]
    return names[at] if 0 <= at < len(names) else ""


def _set_to(program: Program, function: ast.FunctionDef, parameter: str) -> GivenAttribute | None:
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            target, place = node.targets[0], program.place(node)
            is_own = isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
            if node.value.id == parameter and is_own and place is not None:
                assert isinstance(target, ast.Attribute)
                return GivenAttribute(target.attr, place)
    return None
