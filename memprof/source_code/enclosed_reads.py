"""What inner functions read of the variables around them, which they keep as long as they live."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from memprof.source_code.program import FUNCTIONS, LOOPS, Place, called_name
from memprof.source_code.scopes import parameters

__all__ = ["EnclosedRead", "enclosed_read"]


@dataclass(frozen=True, slots=True, eq=False)
class EnclosedRead:
    """An inner function that reads a variable of the function around it."""

    place: Place
    """The first statement that reads it, or that has the lambda."""
    function: str
    """The inner function's name; ``a lambda`` where it has none."""
    parts: tuple[str, ...]
    """What it reads of the variable, as written: ``checkpoint["step"]``, or the name alone."""


def enclosed_read(place: Place, name: str) -> EnclosedRead | None:
    """The first inner function that reads ``name``, which the function around ``place`` binds.

    One that is only called there once, and handed to nobody, keeps nothing for longer.
    """
    scope = place.scope
    for inner in ast.walk(scope):
        if inner is scope or not isinstance(inner, (*FUNCTIONS, ast.Lambda)):
            continue
        if name in parameters(inner) or _binds(inner, name) or not _is_handed_on(inner, scope):
            continue
        inside = list(ast.walk(inner))
        reading = [node for node in inside if _is_read(node, name)]
        if not reading:
            continue
        around = {id(node.value): node for node in inside if isinstance(node, _PARTS)}
        parts = [ast.unparse(around.get(id(node), node)) for node in reading]
        where = place.program.place(reading[0])
        if where is not None:
            called = "a lambda" if isinstance(inner, ast.Lambda) else f"`{inner.name}`"
            return EnclosedRead(where, called, tuple(dict.fromkeys(parts)))
    return None


_PARTS = (ast.Attribute, ast.Subscript)
_CONSUMING = frozenset(("filter", "map", "max", "min", "reduce", "sort", "sorted"))
"""Functions that have called what they are given when their result has been read."""


def _is_read(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)


def _binds(inner: ast.AST, name: str) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
        for node in ast.walk(inner)
    )


def _is_handed_on(inner: ast.AST, scope: ast.AST) -> bool:
    """Whether a function is given to something, returned, or called in a loop or by another one.

    What ``sorted(names, key=lambda name: …)`` is given has gone when that returns.
    """
    nodes = list(ast.walk(scope))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    if isinstance(inner, ast.Lambda):
        consuming = [call for call in calls if called_name(call) in _CONSUMING]
        return not any(
            value is inner
            for call in consuming
            for value in (*call.args, *(one.value for one in call.keywords))
        )
    name = getattr(inner, "name", "")
    again = {
        id(call.func)
        for around in nodes
        if isinstance(around, (*LOOPS, *FUNCTIONS, ast.Lambda)) and around is not scope
        for call in ast.walk(around)
        if isinstance(call, ast.Call)
    }
    called_once = {id(call.func) for call in calls} - again
    return any(_is_read(node, name) and id(node) not in called_once for node in nodes)
