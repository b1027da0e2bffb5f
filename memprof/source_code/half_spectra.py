"""Fourier transforms of which the statements of a function read one half."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from memprof.source_code.idioms import keyword
from memprof.source_code.program import Place, bound_names, called_name, calls_in
from memprof.source_code.scopes import nodes_around, qualified_name, reads_of
from memprof.source_code.values import values_of

__all__ = ["HalfSpectrum", "half_spectrum"]

_TRANSFORM = "torch.fft.fft"
_LAST = "-1"
_HALF = 2
_DEEPEST = 4
"""Names that are bound one after the other, before a half is taken."""
_OF_SHAPE = frozenset(("device", "dtype", "ndim", "numel", "shape", "size"))
_PARTS = frozenset(("imag", "real"))
_BY_VALUE = frozenset(
    (
        *("abs", "add", "angle", "clamp", "clamp_min", "conj", "div", "exp", "float", "log"),
        *("log10", "log1p", "log2", "mul", "pow", "sqrt", "square", "sub"),
    )
)
"""Methods of tensors, and functions of torch, that compute a value for each value."""


@dataclass(frozen=True, slots=True, eq=False)
class HalfSpectrum:
    """What is read of a transform."""

    text: str
    """As it is written: ``power[:, :n // 2 + 1]``."""
    lines: frozenset[int]
    """Of the statements that compute with all of it, the transform's own among them."""


def half_spectrum(place: Place) -> HalfSpectrum | None:
    """The first half of the last dimension, where a statement transforms and no more is read of it.

    That is of what is computed of the transform value by value. None where anything else is read.
    """
    calls = [call for call in calls_in(place.statement, "fft") if _is_of_last(place, call)]
    if len(calls) != 1:
        return None
    lines = {place.line}
    halves = list(_halves(place, calls[0], nodes_around(place.statement, calls[0]), lines))
    texts = [ast.unparse(one) for one in halves if one is not None]
    if not texts or len(texts) < len(halves):
        return None
    return HalfSpectrum(texts[0], frozenset(lines))


def _is_of_last(place: Place, call: ast.Call) -> bool:
    """Whether a call is of torch's transform, along the last dimension."""
    along = keyword(call, "dim") or (call.args[2] if len(call.args) > _HALF else None)
    is_last = along is None or ast.unparse(along) == _LAST
    return is_last and qualified_name(place, call.func) == _TRANSFORM


def _halves(
    place: Place, value: ast.expr, around: list[ast.AST], lines: set[int], depth: int = 0
) -> Iterator[ast.Subscript | None]:
    """The subscripts that take one half of a value, or of what is computed of it by value.

    None for each read of another kind. Statements that compute are added to ``lines``.
    """
    waiting = [*around]
    while waiting and (outer := _computed(value, waiting)) is not None:
        value = outer
    parent = waiting[-1] if waiting else None
    if isinstance(parent, ast.Subscript) and parent.value is value:
        yield parent if _is_half(place, parent.slice) else None
        return
    names = [one.id for one in bound_names(parent) if isinstance(one, ast.Name)] if parent else []
    is_bound = isinstance(parent, ast.Assign) and parent.value is value and len(names) == 1
    where = place.program.place(parent) if isinstance(parent, ast.Assign) else None
    if not is_bound or where is None or depth == _DEEPEST:
        yield None
        return
    lines.add(where.line)
    for load, parents in reads_of(where.scope, names[0]):
        is_earlier = load.lineno <= (where.statement.end_lineno or where.line)
        is_of_shape = isinstance(parents[-1], ast.Attribute) and parents[-1].attr in _OF_SHAPE
        if is_of_shape or (is_earlier and where.loop is None):
            continue
        at = max(at for at, node in enumerate(parents) if isinstance(node, ast.stmt))
        yield from _halves(place, load, parents[at:], lines, depth + 1)


def _computed(value: ast.expr, waiting: list[ast.AST]) -> ast.expr | None:
    """What the innermost of the nodes around a value computes by value; takes these off them."""
    parent = waiting[-1]
    if isinstance(parent, (ast.BinOp, ast.UnaryOp)):
        if isinstance(parent.op, ast.MatMult):
            return None
        waiting.pop()
        return parent
    if isinstance(parent, ast.Attribute) and parent.attr in _PARTS:
        waiting.pop()
        return parent
    call = waiting[-2] if isinstance(parent, ast.Attribute) and len(waiting) > 1 else parent
    if not isinstance(call, ast.Call) or called_name(call).rstrip("_") not in _BY_VALUE:
        return None
    if call.func is not parent and not any(one is value for one in call.args):
        return None
    del waiting[-(1 + (call is not parent)) :]
    return call


def _is_half(place: Place, index: ast.expr) -> bool:
    """Whether a subscript takes all of the dimensions but the last, and one half of that.

    Of a single stretch the dimension is not known, but what is one longer than a half.
    """
    entries = index.elts if isinstance(index, ast.Tuple) else [index]
    *others, last = entries
    if not all(_is_whole(one) for one in others) or not isinstance(last, ast.Slice):
        return False
    is_first = last.lower is None or ast.unparse(last.lower) == "0"
    if not is_first or last.step is not None or last.upper is None:
        return False
    ends: list[ast.expr | None] = [last.upper]
    if isinstance(last.upper, (ast.Name, ast.Attribute)):
        ends = list(values_of(place, ast.unparse(last.upper)))
    return bool(ends) and all(_is_of_half(one, with_one=not others) for one in ends)


def _is_of_half(value: ast.expr | None, *, with_one: bool) -> bool:
    """Whether an expression is ``n // 2``, or ``n // 2 + 1``; ``with_one``: the second only."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        is_one = isinstance(value.right, ast.Constant) and value.right.value == 1
        return is_one and _is_of_half(value.left, with_one=False)
    if with_one or not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.FloorDiv):
        return False
    return isinstance(value.right, ast.Constant) and value.right.value == _HALF


def _is_whole(entry: ast.expr) -> bool:
    """Whether an entry of a subscript is ``:`` or ``...``."""
    if isinstance(entry, ast.Slice):
        return entry.lower is entry.upper is entry.step is None
    return isinstance(entry, ast.Constant) and entry.value is ...
