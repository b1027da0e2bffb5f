"""Items of tuples that nothing reads, of a list of such tuples that a variable has."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from memprof.source_code.program import FUNCTIONS, Place, called_name
from memprof.source_code.scopes import COMPREHENSIONS, reads_of

__all__ = ["given_at_position", "is_position_unread"]


def is_position_unread(place: Place, name: str, position: int, length: int) -> bool:
    """Whether no read of a variable that a statement binds comes to one item of the list's tuples.

    ``for _, score in results``, ``[row[1] for row in results]``. False where a tuple is read as a
    whole, and where nothing reads the list at all.
    """
    reads = list(reads_of(place.scope, name))
    return bool(reads) and all(
        _leaves_out(place.scope, node, around, position, length) for node, around in reads
    )


def given_at_position(place: Place, position: int, length: int) -> tuple[ast.expr, Place] | None:
    """What a comprehension gives its tuples there: the expression, and its statement.

    Where a function of the file makes the tuples, of its one ``return``.
    """
    made = getattr(place.statement, "value", None)
    item = made.elt if isinstance(made, (ast.ListComp, ast.GeneratorExp)) else None
    at: Place | None = place
    functions = place.program.functions(called_name(item)) if item is not None else []
    if len(functions) == 1:
        returns = [node for node in ast.walk(functions[0]) if isinstance(node, ast.Return)]
        item = returns[0].value if len(returns) == 1 else None
        at = place.program.place(returns[0]) if returns else None
    if not isinstance(item, ast.Tuple) or len(item.elts) != length or at is None:
        return None
    return item.elts[position], at


def _leaves_out(
    scope: ast.AST, node: ast.expr, around: list[ast.AST], position: int, length: int
) -> bool:
    """Whether one read of the list reads no item of a position."""
    parent = around[-1]
    if isinstance(parent, ast.Call) and called_name(parent) == "len":
        return True
    if isinstance(parent, ast.Subscript) and parent.value is node and len(around) > 1:
        above = around[-2]
        is_item = isinstance(above, ast.Subscript) and above.value is parent
        return is_item and _is_other(above, position, length)  # type: ignore[arg-type]
    is_numbered = isinstance(parent, ast.Call) and called_name(parent) == "enumerate"
    value, rest = (parent, around[:-1]) if is_numbered else (node, around)
    loop = rest[-1]
    if not isinstance(loop, (ast.For, ast.comprehension)) or loop.iter is not value:
        return False
    target = loop.target
    if is_numbered:
        both = isinstance(target, ast.Tuple) and len(target.elts) == len(("number", "item"))
        if not both or not isinstance(target, ast.Tuple):
            return False
        target = target.elts[1]
    region = scope if isinstance(loop, ast.For) else rest[-2]
    return _target_leaves_out(region, target, position, length)


def _target_leaves_out(region: ast.AST, target: ast.expr, position: int, length: int) -> bool:
    if isinstance(target, (ast.List, ast.Tuple)) and len(target.elts) == length:
        own = target.elts[position]
        return isinstance(own, ast.Name) and not any(_loads(region, own.id))
    if not isinstance(target, ast.Name):
        return False
    return all(
        isinstance(around[-1], ast.Subscript)
        and around[-1].value is load
        and _is_other(around[-1], position, length)
        for load, around in reads_of(region, target.id)
    )


def _loads(region: ast.AST, name: str) -> Iterator[ast.Name]:
    """Where a name is read, other than in functions and comprehensions that bind it themselves."""
    for load, around in reads_of(region, name):
        inner = [one for one in around if isinstance(one, (*COMPREHENSIONS, *FUNCTIONS))]
        if not any(one is not region and _binds(one, name) for one in inner):
            yield load


def _binds(scope: ast.AST, name: str) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
        for node in ast.walk(scope)
    ) or any(isinstance(node, ast.arg) and node.arg == name for node in ast.walk(scope))


def _is_other(read: ast.Subscript, position: int, length: int) -> bool:
    """Whether a subscript reads a known item of a tuple, and another one."""
    try:
        at = ast.literal_eval(read.slice)
    except ValueError:
        return False
    return isinstance(at, int) and -length <= at < length and at % length != position
