"""Statements that set a gradient to 0 between every backward pass and the step after it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memprof.source_code.program import LOOPS, Place, Program, called_name, calls_in

__all__ = ["ZeroedGradient", "zeroed_gradients"]

_ZEROING = frozenset(("fill_", "mul_"))
"""Methods that make a gradient 0 where they are given 0."""


@dataclass(frozen=True, slots=True, eq=False)
class ZeroedGradient:
    """Whose gradient, by the names that lead to it."""

    place: Place
    expression: str
    """What has it: ``model.items.weight``, or the module of which all have: ``model.body``."""
    module: tuple[str, ...]
    """Names from the model to the module: ``("items",)``."""
    with_parts: bool
    """All parameters of the module are meant, and of those within it."""
    lines: range
    """From the statement that goes backward to the one that steps."""


def zeroed_gradients(programs: Sequence[Program]) -> Iterator[ZeroedGradient]:
    """Each such statement, in the order of the files.

    It is a statement of its own in the body of a loop, or of a function, that goes backward before
    it and steps after it: what stands under a condition, or takes a part of the gradient, does
    something else.
    """
    for program in programs:
        for body in _bodies(program):
            for at, statement in enumerate(body):
                backward = next(
                    (one for one in reversed(body[:at]) if calls_in(one, "backward")), None
                )
                stepping = next((one for one in body[at + 1 :] if calls_in(one, "step")), None)
                if backward is None or stepping is None:
                    continue
                lines = range(backward.lineno, (stepping.end_lineno or stepping.lineno) + 1)
                zeroed = _zeroed_by(statement)
                place = program.place(statement) if zeroed is not None else None
                if zeroed is not None and place is not None:
                    expression, names, with_parts = zeroed
                    yield ZeroedGradient(place, expression, names, with_parts, lines)


def _bodies(program: Program) -> Iterator[list[ast.stmt]]:
    for node in program.nodes:
        if isinstance(node, (*LOOPS, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.body


def _zeroed_by(statement: ast.stmt) -> tuple[str, tuple[str, ...], bool] | None:
    """The parameter, or the module, whose gradient a statement makes 0; None for others."""
    if isinstance(statement, ast.For) and len(statement.body) == 1:
        owner = _owner(statement.body[0])
        parameters = statement.iter
        if not isinstance(owner, ast.Name) or not isinstance(statement.target, ast.Name):
            return None
        if owner.id != statement.target.id or called_name(parameters) != "parameters":
            return None
        assert isinstance(parameters, ast.Call)
        module = parameters.func.value if isinstance(parameters.func, ast.Attribute) else None
        names = _names(module)
        return (ast.unparse(module), names[1:], True) if module and len(names) > 1 else None
    owner = _owner(statement)
    names = _names(owner)
    if owner is None or len(names) < 3:  # a model, a module of it, and its parameter
        return None
    return ast.unparse(owner), names[1:-1], False


def _owner(statement: ast.stmt) -> ast.expr | None:
    """``p`` of ``p.grad.zero_()``, ``p.grad.mul_(0)``, ``p.grad *= 0`` or ``p.grad = None``."""
    gradient: ast.expr | None = None
    if isinstance(statement, ast.AugAssign):
        is_zero = isinstance(statement.op, ast.Mult) and _is_zero(statement.value)
        gradient = statement.target if is_zero else None
    elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        is_none = isinstance(statement.value, ast.Constant) and statement.value.value is None
        gradient = statement.targets[0] if is_none else None
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        by_zero = called_name(call) in _ZEROING and len(call.args) == 1 and _is_zero(call.args[0])
        if (called_name(call) == "zero_" or by_zero) and isinstance(call.func, ast.Attribute):
            gradient = call.func.value
    if isinstance(gradient, ast.Attribute) and gradient.attr == "data":
        gradient = gradient.value
    is_gradient = isinstance(gradient, ast.Attribute) and gradient.attr == "grad"
    return gradient.value if is_gradient and isinstance(gradient, ast.Attribute) else None


def _is_zero(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value == 0 and value.value is not False


def _names(value: ast.expr | None) -> tuple[str, ...]:
    """``("model", "items", "weight")`` of ``model.items.weight``; ``self`` is no name of a model.

    Empty where it is no chain of attributes.
    """
    names: list[str] = []
    while isinstance(value, ast.Attribute):
        names.append(value.attr)
        value = value.value
    if not isinstance(value, ast.Name):
        return ()
    return tuple(reversed(names if value.id == "self" else [*names, value.id]))
