"""Views by which alone a function hands on what a variable of it has."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from memprof.source_code.program import Place, bound_names, called_name
from memprof.source_code.scopes import reads_of

__all__ = ["EscapingView", "escaping_view"]

_SHARING = frozenset(("asarray", "detach", "numpy"))
"""What makes another object of a tensor's memory."""
_TO_ARRAY = frozenset(("asarray", "numpy"))


@dataclass(frozen=True, slots=True, eq=False)
class EscapingView:
    """A view of a variable's tensor, in a statement that hands it to who called."""

    place: Place
    value: ast.expr
    """As it leaves: ``np.asarray(scores.diagonal())``."""
    is_array: bool


def escaping_view(place: Place) -> EscapingView | None:
    """``scores.diagonal()`` of a statement that binds ``scores``, where that is all that is read.

    By a ``yield`` or a ``return`` of the function. Only what is a small part whatever the size: a
    diagonal, or one place of a dimension behind the first (``hidden[:, -1]``).
    """
    names = [one.id for one in bound_names(place.statement) if isinstance(one, ast.Name)]
    reads = list(reads_of(place.scope, names[0])) if len(names) == 1 else []
    if len(reads) != 1 or place.function is None:
        return None
    node: ast.expr = reads[0][0]
    around = [*reads[0][1]]
    view = _view(node, around)
    if view is None:
        return None
    is_array = False
    node = view
    while (sharing := _shared(node, around)) is not None:
        is_array |= called_name(sharing) in _TO_ARRAY
        node = sharing
    outer = around[-1] if around else None
    if isinstance(outer, (ast.Tuple, ast.List)):
        around.pop()
        outer = around[-1] if around else None
    if not isinstance(outer, (ast.Return, ast.Yield)):
        return None
    at = place.program.place(node)
    return EscapingView(at, node, is_array) if at is not None else None


def _view(node: ast.expr, around: list[ast.AST]) -> ast.expr | None:
    """The small view of a node, taken off the nodes around it."""
    parent = around[-1] if around else None
    if isinstance(parent, ast.Subscript) and parent.value is node:
        index = parent.slice
        behind = index.elts[1:] if isinstance(index, ast.Tuple) else []
        around.pop()
        return parent if any(map(_is_number, behind)) else None
    call = _call_of(node, around)
    return call if call is not None and called_name(call) == "diagonal" else None


def _shared(node: ast.expr, around: list[ast.AST]) -> ast.expr | None:
    """The call that makes another object of a node's memory, taken off the nodes around it."""
    rest = [*around]
    call = _call_of(node, rest)
    if call is None or called_name(call) not in _SHARING:
        return None
    around[:] = rest
    return call


def _call_of(node: ast.expr, around: list[ast.AST]) -> ast.Call | None:
    """The call of a node's method, or of a function with it for its first argument."""
    parent = around.pop() if around else None
    if isinstance(parent, ast.Attribute):
        call = around.pop() if around else None
        return call if isinstance(call, ast.Call) and call.func is parent else None
    is_first = isinstance(parent, ast.Call) and bool(parent.args) and parent.args[0] is node
    return parent if isinstance(parent, ast.Call) and is_first else None


def _is_number(index: ast.expr) -> bool:
    operand = index.operand if isinstance(index, ast.UnaryOp) else index
    return isinstance(operand, ast.Constant) and isinstance(operand.value, int)
