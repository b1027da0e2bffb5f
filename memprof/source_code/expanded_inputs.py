"""Whether a module is called with one input that is shown several times, as a batch."""

from __future__ import annotations

import ast

from memprof.source_code.program import Place, assigned, called_name, own_calls
from memprof.source_code.scopes import bound_in_turn

__all__ = ["expanded_input"]

_SHOWING = frozenset(("broadcast_to", "expand", "expand_as", "repeat"))
_FUNCTIONS = frozenset(("F", "functional", "math", "nn", "np", "torch"))
"""Modules of Python whose functions are no modules of torch."""


def expanded_input(place: Place) -> tuple[ast.Call, ast.expr] | None:
    """The call of a statement with such an input as all that it is given, and what is shown.

    ``self.trunk(coords)``, where ``coords = coords.unsqueeze(0).expand(n, -1, -1)``.
    """
    for call in own_calls(place.statement):
        if len(call.args) != 1 or call.keywords or not _may_be_module(call):
            continue
        if place.program.functions(called_name(call)):  # it may read more than what it is given
            continue
        given: ast.expr | None = call.args[0]
        if isinstance(given, ast.Name):
            given = _bound_before(place, given.id)
        shown = _shown(given) if given is not None else None
        if shown is not None:
            return call, shown
    return None


def _bound_before(place: Place, name: str) -> ast.expr | None:
    """What the statement before binds to a variable of its function, in no branch; or None."""
    statements = [one for one in bound_in_turn(place.scope, name) if one.lineno < place.line]
    for target, value in assigned(statements[-1]) if statements else ():
        if isinstance(target, ast.Name) and target.id == name:
            return value
    return None


def _may_be_module(call: ast.Call) -> bool:
    """Whether it is an attribute or a variable that is called, and no function of torch."""
    if isinstance(call.func, ast.Attribute):
        base = call.func.value
        return not (isinstance(base, ast.Name) and base.id in _FUNCTIONS)
    return isinstance(call.func, ast.Name)


def _shown(value: ast.expr) -> ast.expr | None:
    """What an expression shows along a new first dimension; None where it does anything else."""
    if called_name(value) not in _SHOWING or not isinstance(value, ast.Call):
        return None
    of = value.func.value if isinstance(value.func, ast.Attribute) else None
    if of is None:
        return None
    sizes = [ast.unparse(one) for one in value.args]
    rest = "1" if called_name(value) == "repeat" else "-1"
    base = _without_first(of)
    if base is not None and (called_name(value) != "repeat" or set(sizes[1:]) == {rest}):
        return base
    is_of_first = len(sizes) > 1 and sizes[0] != rest and set(sizes[1:]) == {rest}
    return of if is_of_first and called_name(value) == "expand" else None


def _without_first(value: ast.expr) -> ast.expr | None:
    """``x`` of ``x.unsqueeze(0)`` and ``x[None]``; None for any other expression."""
    if isinstance(value, ast.Subscript):
        entries = value.slice.elts if isinstance(value.slice, ast.Tuple) else [value.slice]
        is_new = [isinstance(one, ast.Constant) and one.value is None for one in entries]
        return value.value if is_new[0] and not any(is_new[1:]) else None
    if not isinstance(value, ast.Call) or called_name(value) != "unsqueeze":
        return None
    is_first = [*map(ast.unparse, value.args)] == ["0"]
    return value.func.value if is_first and isinstance(value.func, ast.Attribute) else None
