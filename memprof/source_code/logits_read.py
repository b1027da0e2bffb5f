"""Logits that nothing reads but a cross entropy, which keeps a table of its own of them."""

from __future__ import annotations

import ast

from memprof.source_code.program import Place, assigned, called_name
from memprof.source_code.scopes import reads_of
from memprof.source_code.values import values_of

__all__ = ["is_product", "is_read_by_cross_entropy"]

_SHOWN_ANOTHER_WAY = frozenset(
    ("flatten", "permute", "reshape", "size", "squeeze", "transpose", "unsqueeze", "view")
)
"""Methods between logits and a loss that compute nothing with them, or ask for their shape."""
_OF_SHAPE = frozenset(("device", "dtype", "ndim", "shape"))
_FUNCTION, _CLASS = "cross_entropy", "CrossEntropyLoss"
_PRODUCTS = frozenset(("bmm", "linear", "matmul", "mm"))


def is_product(place: Place) -> bool:
    """Whether what a statement binds or returns is a product of matrices, which no graph saves."""
    value = getattr(place.statement, "value", None)
    if isinstance(value, ast.BinOp):
        return isinstance(value.op, ast.MatMult)
    return value is not None and called_name(value) in _PRODUCTS


def is_read_by_cross_entropy(place: Place, name: str) -> bool:
    """Whether all reads of a variable hand it to a cross entropy, in another shape perhaps.

    That saves its logarithms of probabilities, and no logits.
    """
    is_handed_on = False
    for load, around in reads_of(place.scope, name):
        call = _loss_given(load, around)
        if call is None:
            if not _asks_for_shape(load, around):
                return False
        elif not _is_cross_entropy(place, call):
            return False
        else:
            is_handed_on = True
    return is_handed_on


def _loss_given(load: ast.Name, around: list[ast.AST]) -> ast.Call | None:
    """The call whose first argument a variable is, through methods that only shape it."""
    value: ast.AST = load
    waiting = list(around)
    while waiting:
        outer = waiting.pop()
        is_method = isinstance(outer, ast.Attribute) and outer.attr in _SHOWN_ANOTHER_WAY
        if isinstance(outer, ast.Call):
            if outer.func is not value:
                return outer if outer.args[:1] == [value] else None
        elif not is_method:
            return None
        value = outer
    return None


def _asks_for_shape(load: ast.Name, around: list[ast.AST]) -> bool:
    parent = around[-1] if around else None
    if not isinstance(parent, ast.Attribute) or parent.value is not load:
        return False
    return parent.attr in _OF_SHAPE or parent.attr == "size"


def _is_cross_entropy(place: Place, call: ast.Call) -> bool:
    """Whether a call is ``F.cross_entropy(…)``, or one of a ``CrossEntropyLoss`` of the file."""
    if called_name(call) == _FUNCTION:
        return True
    function = call.func
    if isinstance(function, ast.Name):
        made = [one for one in values_of(place, function.id) if one is not None]
        if made:
            return all(called_name(one) == _CLASS for one in made)
    written = ast.unparse(function)
    values = [
        value
        for node in place.program.nodes
        for target, value in assigned(node)
        if ast.unparse(target) == written
    ]
    return bool(values) and all(
        value is not None and called_name(value) == _CLASS for value in values
    )
