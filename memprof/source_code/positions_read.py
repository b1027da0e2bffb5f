"""Of which positions the values are read that a function computes one by one of a model's result.

``logps = per_token_logps(model, ids)``, and then ``logps[:, -completion:]`` alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.parts_read import Followed, followed
from memprof.source_code.program import (
    Place,
    bound_names,
    called_name,
    calls_in,
    loaded_names,
    place_of,
)
from memprof.source_code.scopes import nodes_around, reads_of_binding
from memprof.source_code.values import values_of
from memprof.trace import Frame

__all__ = ["PositionsRead", "positions_read"]

_OF_SHAPE = frozenset(("device", "dtype", "ndim", "shape", "size"))
_LOSSES = frozenset(("CrossEntropyLoss", "NLLLoss", "cross_entropy", "nll_loss"))
_SHIFT = 2
"""Positions that a shift by one or two leaves out: what predicts the first has none before it."""


@dataclass(frozen=True, slots=True, eq=False)
class PositionsRead:
    """The positions whose values are read, and the function that computes those of all."""

    text: str
    """As it is written: ``logps[:, -completion:]``."""
    place: Place
    """The statement that takes them."""
    computing: ast.FunctionDef | ast.AsyncFunctionDef
    """The function that is given the model's result, or asks for it."""
    asking: Place
    """The statement in it that calls the model."""
    switch: str
    """The parameter of the model that says for how many positions to compute."""


def positions_read(stack: Sequence[Frame]) -> PositionsRead | None:
    """The only positions of which anything is read of what the innermost call of a stack returns.

    ``stack`` is innermost first. A function of the program takes a value for each position of the
    model's result (it gathers one, or asks for a loss of each), and it or the function that calls
    it cuts the first positions off. None where the model has no parameter for that, where the rest
    is read as well, or where that cannot be told from the source.
    """
    result = followed(stack, shifted=True)
    function = result.place.function if result is not None else None
    if result is None or function is None or not result.switch:
        return None
    if frame_kind(result.place.program.filename) is not FrameKind.USER:
        return None
    if not _takes_one_of_each(result, function):
        return None
    place, callers = result.place, stack[result.at + 1 :]
    returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
    if len(returned) != 1 or returned[0] is None:
        return None
    cut, where = _cut(returned[0]), place.program.place(returned[0])
    if cut is None:
        taken = _cut_by_callers(function.name, returned[0], callers)
        cut, where = taken if taken is not None else (None, None)
    if cut is None or where is None:
        return None
    return PositionsRead(ast.unparse(cut), where, function, place, result.switch)


def _takes_one_of_each(result: Followed, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function gathers one value of each position, or one that it hands the result to."""
    if _gathers(function) or any(
        _is_loss_of_each(value)
        for call in calls_in(function)
        for value in values_of(result.place, ast.unparse(call.func))
    ):
        return True
    names = {result.name}
    for node in sorted(ast.walk(function), key=lambda one: getattr(one, "lineno", 0)):
        if isinstance(node, ast.Assign) and loaded_names(node.value) & names:
            names |= {one.id for one in bound_names(node) if isinstance(one, ast.Name)}
    return any(
        _gathers(called)
        for call in calls_in(function)
        if any(loaded_names(one) & names for one in call.args)
        for called in result.place.program.functions(called_name(call))
    )


def _gathers(function: ast.AST) -> bool:
    """Whether a value of each row is gathered, or a loss asked for without a reduction."""
    calls = calls_in(function)
    if any(called_name(call) == "gather" or _is_loss_of_each(call) for call in calls):
        return True
    names = set(map(called_name, calls))
    return {"Categorical", "log_prob"} <= names


def _is_loss_of_each(call: ast.AST | None) -> bool:
    """Whether a call asks for a loss of each position, or makes what computes such."""
    if not isinstance(call, ast.Call) or called_name(call) not in _LOSSES:
        return False
    given = {one.arg: one.value for one in call.keywords}
    reduction = given.get("reduction")
    return isinstance(reduction, ast.Constant) and reduction.value == "none"


def _cut(value: ast.expr) -> ast.Subscript | None:
    """``logps[:, -k:]``, where an expression is no more than that."""
    if not isinstance(value, ast.Subscript) or not isinstance(value.slice, ast.Tuple):
        return None
    entries = value.slice.elts
    if len(entries) != 2 or not all(isinstance(one, ast.Slice) for one in entries):
        return None
    rows, positions = entries
    assert isinstance(rows, ast.Slice)
    assert isinstance(positions, ast.Slice)
    if rows.lower or rows.upper or rows.step or positions.upper or positions.step:
        return None
    first = positions.lower
    if isinstance(first, ast.Constant) and isinstance(first.value, int) and first.value <= _SHIFT:
        return None
    if first is None:
        return None
    return value


def _cut_by_callers(
    name: str, returned: ast.expr, callers: Sequence[Frame]
) -> tuple[ast.Subscript, Place] | None:
    """The same of what functions further out do with a function's result, handed on as it is."""
    if not isinstance(returned, (ast.Name, ast.Call)):
        return None
    for frame in callers:
        kind = frame_kind(frame.filename)
        if kind is FrameKind.TORCH:
            continue  # a decorator's
        place = place_of(frame) if kind is FrameKind.USER else None
        calls = calls_in(place.statement, name) if place is not None else []
        if place is None or len(calls) != 1:
            return None
        around = nodes_around(place.statement, calls[0])
        parent = around[-1] if around else None
        if isinstance(parent, ast.Subscript):
            cut = _cut(parent)
            return (cut, place) if cut is not None else None
        if isinstance(parent, ast.Return) and place.function is not None:
            name = place.function.name
            continue
        cuts = list(_cuts_of_name(place, parent))
        texts = {ast.unparse(one) for one in cuts if one is not None}
        if None in cuts or len(texts) != 1 or cuts[0] is None:
            return None
        where = place.program.place(cuts[0])
        return (cuts[0], where) if where is not None else None
    return None


def _cuts_of_name(place: Place, assign: ast.AST | None) -> Iterator[ast.Subscript | None]:
    """What each read of the name takes that a statement binds; None where it takes more."""
    targets = bound_names(assign) if isinstance(assign, ast.Assign) else []
    if len(targets) != 1 or not isinstance(targets[0], ast.Name):
        yield None
        return
    for _, around in reads_of_binding(place.scope, targets[0].id, place.line):
        parent = around[-1]
        if isinstance(parent, ast.Attribute) and parent.attr in _OF_SHAPE:
            continue
        yield _cut(parent) if isinstance(parent, ast.Subscript) else None
