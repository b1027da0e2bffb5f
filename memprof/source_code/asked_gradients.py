"""Where a program asks for the gradient of data that it is handed."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from memprof.source_code.program import Place, Program, bound_names, called_name
from memprof.source_code.scopes import parameters

__all__ = ["data_asked_for_gradients"]

_ASKING, _FLAG = "requires_grad_", "requires_grad"


def data_asked_for_gradients(programs: Sequence[Program]) -> tuple[Place, str] | None:
    """The statement and the name, ``real.requires_grad_(True)``; None where there are several.

    Of a parameter of its function or a loop's variable: such a tensor is somebody else's, and a
    backward pass leaves it a gradient. Not of a module, which is called.
    """
    places = [
        (place, name)
        for program in programs
        for statement in program.nodes
        if isinstance(statement, (ast.Expr, ast.Assign)) and (name := _asked(statement))
        if (place := program.place(statement)) is not None and name in _handed(place)
        if not _is_called(place, name)
    ]
    return places[0] if len(places) == 1 else None


def _asked(statement: ast.Expr | ast.Assign) -> str:
    """The name of the tensor that a statement turns gradients on for; empty for others."""
    value = statement.value
    if isinstance(statement, ast.Expr):
        if called_name(value) != _ASKING or not isinstance(value, ast.Call) or not _is_on(value):
            return ""
        receiver = value.func.value if isinstance(value.func, ast.Attribute) else None
    else:
        target = statement.targets[0]
        is_flag = isinstance(target, ast.Attribute) and target.attr == _FLAG
        is_true = isinstance(value, ast.Constant) and value.value is True
        receiver = target.value if isinstance(target, ast.Attribute) and is_flag else None
        receiver = receiver if is_true else None
    return receiver.id if isinstance(receiver, ast.Name) else ""


def _is_on(call: ast.Call) -> bool:
    given = [*call.args, *(one.value for one in call.keywords)]
    return all(isinstance(one, ast.Constant) and one.value is True for one in given)


def _is_called(place: Place, name: str) -> bool:
    """Whether a function calls what has a name, as it does a module."""
    return any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
        for node in ast.walk(place.scope)
    )


def _handed(place: Place) -> Iterator[str]:
    """Parameters of the function around, and variables of the loops that it stands in."""
    if place.function is not None:
        yield from parameters(place.function)
    for node in place.around:
        if isinstance(node, (ast.For, ast.AsyncFor)):
            yield from (one.id for one in bound_names(node) if isinstance(one, ast.Name))
