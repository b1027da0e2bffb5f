"""What is read of a table whose rows are each searched for their best few: nothing else of it."""

from __future__ import annotations

import ast

from memprof.source_code.program import Place, bound_names, called_name
from memprof.source_code.scopes import reads_of

__all__ = ["best_of_rows"]

_SELECTING = frozenset(("argmax", "argmin", "kthvalue", "max", "min", "topk"))
"""Methods of tensors, and functions of torch, that look for the best values along a dimension."""
_BY_DEFAULT = ("kthvalue", "topk")
"""Those that go along the last one if none is given, and not over all."""
_OF_PAIRS = frozenset(
    ("cdist", "cos_sim", "dot_score", "matmul", "mm", "pairwise_cosine_similarity")
)
"""Functions that make a value for each pair of rows."""
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
    if not _is_by_row(statement.value):
        return ""
    uses = [_use_of(read, around) for read, around in reads_of(place.scope, names[0])]
    searches = {use for use in uses if use}
    return searches.pop() if None not in uses and len(searches) == 1 else ""


def _is_by_row(value: ast.expr) -> bool:
    """Whether each row comes of one row of an operand: of a product, or of another function.

    What a table is computed into over its rows, ``cdist(a, b).mean(0)``, needs all of them.
    """
    if isinstance(value, ast.BinOp):
        if isinstance(value.op, ast.MatMult):
            return True
        return any(_is_by_row(side) for side in (value.left, value.right))
    if isinstance(value, ast.UnaryOp):
        return _is_by_row(value.operand)
    return isinstance(value, ast.Call) and called_name(value) in _OF_PAIRS


def _use_of(read: ast.Name, around: list[ast.AST]) -> str | None:
    """The search that a read is of; empty for one that leaves rows alone; None for any other."""
    outer = [*around[::-1], None]
    parent, above = outer[0], outer[1]
    if isinstance(parent, ast.Attribute):
        if parent.attr in _OF_SHAPE:
            return ""
        is_called = isinstance(above, ast.Call) and above.func is parent
        if isinstance(above, ast.Call) and is_called and parent.attr in _SELECTING:
            return _search(above, 0)
        is_changed = is_called and parent.attr in _BY_VALUE
        return "" if is_changed and _is_bound_again(read, around) else None
    if isinstance(parent, ast.Call) and parent.args[:1] == [read]:
        if called_name(parent) in _SELECTING:
            return _search(parent, 1)
        is_changed = called_name(parent) in _BY_VALUE
        return "" if is_changed and _is_bound_again(read, around) else None
    if isinstance(parent, ast.Compare):
        return _where(parent, around[:-1])
    if isinstance(parent, ast.Subscript) and parent.value is read:
        return "" if isinstance(parent.ctx, ast.Store) else None
    is_product = isinstance(getattr(parent, "op", None), ast.MatMult)
    is_by_value = isinstance(parent, (ast.BinOp, ast.UnaryOp)) and not is_product
    return "" if is_by_value and _is_bound_again(read, around) else None


def _search(call: ast.Call, operands: int) -> str | None:
    """A search along the last dimension, or the second; None for one over columns, or over all."""
    at = operands + int(called_name(call) in _BY_DEFAULT)
    given = [one.value for one in call.keywords if one.arg == "dim"] or call.args[at : at + 1]
    is_of_rows = [ast.unparse(one) in ("-1", "1") for one in given] == [True]
    is_default = not given and called_name(call) in _BY_DEFAULT
    return ast.unparse(call) if is_of_rows or is_default else None


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
