"""What a loop carries from one pass to the next with its graph: ``state`` of ``act(x, state)``."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memprof.source_code.program import FUNCTIONS, Place, assigned, bound_names, calls_in

__all__ = ["Carried", "carried_on"]

_CUTTING = frozenset(
    {"argmax", "argmin", "argsort", "bool", "detach", "int", "item", "long", "multinomial"}
    | {"numpy", "sample", "tolist"}
)
"""Methods and functions whose result has no graph: indices and what is drawn have none."""


@dataclass(frozen=True, slots=True)
class Carried:
    """A name or attribute that a loop carries on, and the statement that binds it."""

    place: Place
    name: str


def carried_on(place: Place) -> Carried | None:
    """What the body of a loop makes from that of the pass before, in one statement or several.

    ``new = act(x, state)``, and then ``state = reset(new)``. The statement of ``place`` is the
    first of them, or the only one. Not in a model's ``forward``, whose loops go through layers.
    """
    loop, function = place.loop, place.function
    if loop is None or (function is not None and function.name == "forward"):
        return None
    body = [one for one in loop.body if not isinstance(one, (*FUNCTIONS, ast.ClassDef))]
    if place.statement not in body or not isinstance(place.statement, ast.Assign):
        return None
    at = body.index(place.statement)
    read_at = set(_attached_names(place.statement.value))
    for later in range(at, len(body)):
        statement = body[later]
        if not isinstance(statement, ast.Assign):
            continue
        for target, value in assigned(statement):
            name = ast.unparse(target)
            if value is None or not (later == at or name in read_at):
                continue
            if name in _origins(value, body[:later]):
                return Carried(place.program.place(statement) or place, name)
    return None


def _origins(value: ast.expr, before: Sequence[ast.stmt]) -> set[str]:
    """What a value is made from by calls of the statements before it, itself left out.

    Only what those statements do not bind themselves before they read it: that is of the pass
    before. Nothing that is cut off from its graph on the way.
    """
    waiting = [(name, len(before)) for name in _attached_names(value)]
    origins: set[str] = set()
    followed = set()
    while waiting:
        name, end = waiting.pop()
        if (name, end) in followed:
            continue
        followed.add((name, end))
        bindings = [at for at, one in enumerate(before[:end]) if name in _names_bound(one)]
        if not bindings:
            if end < len(before):
                origins.add(name)
            continue
        for target, bound in assigned(before[bindings[-1]]):
            if bound is not None and ast.unparse(target) == name and any(calls_in(bound)):
                waiting += [(one, bindings[-1]) for one in _attached_names(bound)]
    return origins


def _names_bound(statement: ast.stmt) -> set[str]:
    """The text of whatever a statement binds, also within branches and loops of its own."""
    return {
        ast.unparse(target)
        for node in ast.walk(statement)
        if isinstance(node, ast.stmt)
        for target in bound_names(node)
    }


def _attached_names(value: ast.AST) -> Iterator[str]:
    """Names and attributes that are read with their graphs."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if value.func.attr in _CUTTING:
            return
    elif isinstance(value, ast.Attribute) and value.attr == "data":
        return
    if isinstance(value, (ast.Name, ast.Attribute)) and isinstance(value.ctx, ast.Load):
        yield ast.unparse(value)
    for child in ast.iter_child_nodes(value):
        yield from _attached_names(child)
