"""What is read of a table whose rows are each searched for their best few: nothing else of it."""

from __future__ import annotations

import ast

from memprof.source_code.program import Place, bound_names, called_name
from memprof.source_code.scopes import reads_of

__all__ = ["best_of_rows"]

_SELECTING = frozenset(("argmax", "argmin", "argsort", "kthvalue", "max", "min", "sort", "topk"))
"""Methods of tensors, and functions of torch, that look for the best values along a dimension."""
_OF_SHAPE = frozenset(("device", "dim", "dtype", "ndim", "numel", "shape", "size"))
_BY_VALUE = frozenset(
    (
        *("add_", "clamp", "clamp_", "clip", "div_", "exp", "fill_diagonal_", "masked_fill"),
        *("masked_fill_", "mul_", "neg", "pow", "sigmoid", "sqrt", "square", "sub_", "tril"),
        *("tril_", "triu", "triu_"),
    )
)
"""Methods and functions that change values one by one, or along the diagonal."""
_FINDING = frozenset(("argwhere", "nonzero", "where"))
"""Functions, and a method, that return where a condition holds."""


def best_of_rows(place: Place) -> str:
    """The search for the best values of a table that a statement makes: ``scores.topk(5)``.

    Empty where the table is read in any other way, or is no variable of one function.
    """
    statement = place.statement
    names = [one.id for one in bound_names(statement) if isinstance(one, ast.Name)]
    if not isinstance(statement, ast.Assign) or len(names) != 1 or place.function is None:
        return ""
    searched = ""
    for read, around in reads_of(place.scope, names[0]):
        use = _use_of(read, around)
        if use is None:
            return ""
        searched = searched or use
    return searched


def _use_of(read: ast.Name, around: list[ast.AST]) -> str | None:
    """The search that a read is of; empty for one that leaves rows alone; None for any other."""
    outer = [*around[::-1], None]
    parent, above = outer[0], outer[1]
    if isinstance(parent, ast.Attribute):
        if parent.attr in _OF_SHAPE:
            return ""
        is_called = isinstance(above, ast.Call) and above.func is parent
        if is_called and above is not None and parent.attr in _SELECTING:
            return ast.unparse(above)
        is_changed = is_called and parent.attr in _BY_VALUE
        return "" if is_changed and _is_bound_again(read, around) else None
    if isinstance(parent, ast.Call) and parent.args[:1] == [read]:
        if called_name(parent) in _SELECTING:
            return ast.unparse(parent)
        is_changed = called_name(parent) in _BY_VALUE
        return "" if is_changed and _is_bound_again(read, around) else None
    if isinstance(parent, ast.Compare):
        return _where(parent, around[:-1])
    if isinstance(parent, ast.Subscript) and parent.value is read:
        return "" if isinstance(parent.ctx, ast.Store) else None
    is_by_value = isinstance(parent, (ast.BinOp, ast.UnaryOp))
    return "" if is_by_value and _is_bound_again(read, around) else None


def _where(condition: ast.Compare, around: list[ast.AST]) -> str | None:
    """The call that says where a condition holds: ``torch.where(x > 0.9)``; None for others."""
    outer = [*around[::-1], None]
    parent, above = outer[0], outer[1]
    if isinstance(parent, ast.Call) and parent.args == [condition]:
        return ast.unparse(parent) if called_name(parent) in _FINDING else None
    is_called = isinstance(above, ast.Call) and above.func is parent and not above.args
    is_finding = isinstance(parent, ast.Attribute) and parent.attr in _FINDING
    return ast.unparse(above) if is_called and above is not None and is_finding else None


def _is_bound_again(read: ast.Name, around: list[ast.AST]) -> bool:
    """Whether what is computed of it has its name, or is changed in place: ``scores.mul_(2)``."""
    statement = next((node for node in around[::-1] if isinstance(node, ast.stmt)), None)
    if isinstance(statement, ast.Expr):
        call = statement.value
        return isinstance(call, ast.Call) and called_name(call).endswith("_")
    if not isinstance(statement, (ast.Assign, ast.AugAssign)):
        return False
    return [ast.unparse(one) for one in bound_names(statement)] == [read.id]
