"""Tensors that a loop hands to a function and takes back longer, beginning with none."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from memprof.rules.case import Case
from memprof.source_code.program import (
    Place,
    arguments,
    assigned,
    bound_names,
    called_name,
    calls_in,
    own_calls,
    root_name,
)
from memprof.source_code.scopes import parameters
from memprof.source_code.verbs import JOINING

__all__ = ["carried_by_loop"]


def carried_by_loop(case: Case, place: Place) -> str:
    """``past[0]`` of ``torch.cat([past[0], k])``, where a loop of the caller carries ``past``.

    ``past = None``, and then ``x, past = layer(x, past)`` in a loop: so it is begun anew with each
    loop. Empty where it is not, or where the loop goes through data, which may be many prompts.
    """
    text = next(_handed_in(place), "")
    if text and any(_carries(at) for _, at in case.frames if at.function is not place.function):
        return text
    return ""


def _handed_in(place: Place) -> Iterator[str]:
    """What a statement joins with more that is a parameter of its function, or a part of one."""
    own = set(parameters(place.function)) if place.function is not None else set()
    bound = {ast.unparse(one) for one in bound_names(place.statement)}
    for call in own_calls(place.statement, *JOINING):
        joined = call.args[0] if call.args else None
        for one in joined.elts if isinstance(joined, (ast.List, ast.Tuple)) else ():
            name = root_name(one)
            if isinstance(one, (ast.Name, ast.Subscript)) and name in own - bound - {"self"}:
                yield ast.unparse(one)


def _carries(at: Place) -> bool:
    """Whether a statement of a loop hands a call what it binds anew, and which begins with none."""
    loop = at.loop
    if loop is None or (isinstance(loop, ast.For) and called_name(loop.iter) != "range"):
        return False
    names = {one.id for one in bound_names(at.statement) if isinstance(one, ast.Name)}
    given = {
        one.id
        for call in calls_in(at.statement)
        for one in arguments(call)
        if isinstance(one, ast.Name)
    }
    outside = at.program.place(loop)
    return outside is not None and any(_begins_with_none(outside, one) for one in names & given)


def _begins_with_none(loop: Place, name: str) -> bool:
    """Whether a variable is bound to nothing right outside of a loop: ``past = None``."""
    for node in ast.walk(loop.scope):
        place = loop.program.place(node) if isinstance(node, ast.Assign) else None
        if place is None or place.loop is not loop.loop or place.function is not loop.function:
            continue
        for target, value in assigned(node):
            if isinstance(target, ast.Name) and target.id == name and _is_nothing(value):
                return True
    return False


def _is_nothing(value: ast.expr | None) -> bool:
    """Whether a value is none, or a list of none: ``[]``, ``[None] * depth``."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        return _is_nothing(value.left) and isinstance(value.left, ast.List)
    if isinstance(value, ast.ListComp):
        return _is_nothing(value.elt)
    if isinstance(value, (ast.List, ast.Tuple)):
        return all(map(_is_nothing, value.elts))
    return isinstance(value, ast.Constant) and value.value is None
