"""Overlapping windows of a sequence that a statement copies and joins into one tensor."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from memprof.source_code.program import LOOPS, Place, bound_names, called_name, calls_in
from memprof.source_code.values import values_of
from memprof.source_code.verbs import JOINING

__all__ = ["CopiedWindows", "copied_windows"]

_CONVERTING = ("as_tensor", "asarray", "from_numpy", "tensor")
_COPYING = ("clone", "contiguous", "reshape")
_OF_UNFOLD = 3
"""Arguments of a tensor's `unfold`."""
_RANGE_WITH_STEP = 3
"""Arguments of `range`."""


@dataclass(frozen=True, slots=True, eq=False)
class CopiedWindows:
    """Which sequence it is, and how the windows are known to overlap."""

    sequence: str
    """As the program writes it: ``signal``, ``self.series``."""
    begins_anywhere: bool
    """A window begins at every value, as of ``range(len(x) - n)``."""
    is_converted: bool
    """The sequence is no tensor: its parts are made tensors."""
    is_view: bool = False
    """They are a view already, of `unfold`, before they are copied."""


def copied_windows(place: Place) -> CopiedWindows | None:
    """``torch.stack([x[i : i + n] for i in …])``, also by way of a list that a loop fills."""
    for call in calls_in(place.statement):
        if called_name(call) not in JOINING or not call.args:
            continue
        for part, target, iterated in _parts(place, call.args[0]):
            sequence = _window_of(part, target)
            if sequence is not None:
                return CopiedWindows(
                    ast.unparse(sequence),
                    _is_every_value(iterated),
                    bool(calls_in(part, *_CONVERTING)),
                )
    return _copied_view(place)


def _copied_view(place: Place) -> CopiedWindows | None:
    """``torch.cat([x.unfold(0, size, step) for x in …])``, ``x.unfold(0, size, step).clone()``."""
    for call in calls_in(place.statement):
        name, receiver = called_name(call), getattr(call.func, "value", None)
        joined = [*call.args[:1]] if name in JOINING else []
        values = [one for value in joined for one in _joined_values(place, value)]
        if name in _COPYING and receiver is not None:
            values.append(receiver)
        for value in values:
            unfolding = _unfolding(place, value)
            if unfolding is not None:
                return CopiedWindows(ast.unparse(unfolding), False, False, is_view=True)
    return None


def _joined_values(place: Place, joined: ast.expr) -> Iterator[ast.expr]:
    """Expressions whose values, or whose items, are joined: also those put into a list before."""
    yield from (part for part, _, _ in _parts(place, joined))
    if isinstance(joined, ast.Call) and called_name(joined) in ("list", "tuple"):
        yield from joined.args[:1]
    if isinstance(joined, ast.Name):
        for call in calls_in(place.scope, "extend"):
            of = call.func.value if isinstance(call.func, ast.Attribute) else None
            if isinstance(of, ast.Name) and of.id == joined.id:
                yield from call.args[:1]


def _unfolding(place: Place, value: ast.expr) -> ast.expr | None:
    """What a value is windows of by ``x.unfold(dimension, size, step)``; None where it is none."""
    if isinstance(value, ast.Name):
        bound = list(values_of(place, value.id))
        value = bound[0] if len(bound) == 1 and bound[0] is not None else value
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        given = len(value.args) + len(value.keywords)
        if value.func.attr == "unfold" and given == _OF_UNFOLD:
            return value.func.value
        value = value.func.value
    return None


def _parts(place: Place, joined: ast.expr) -> Iterator[tuple[ast.expr, ast.expr, ast.expr]]:
    """Each expression whose values are joined, with a loop's target and what that goes through."""
    if isinstance(joined, (ast.ListComp, ast.GeneratorExp)):
        for generator in joined.generators:
            yield joined.elt, generator.target, generator.iter
    if isinstance(joined, ast.Call) and called_name(joined) in ("list", "tuple") and joined.args:
        yield from _parts(place, joined.args[0])
    if not isinstance(joined, ast.Name):
        return
    for node in ast.walk(place.scope):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            names = {one.id for one in bound_names(node) if isinstance(one, ast.Name)}
            if names == {joined.id} and not isinstance(node.value, ast.Name):
                yield from _parts(place, node.value)
        if isinstance(node, LOOPS) and not isinstance(node, ast.While):
            for call in calls_in(node, "append"):
                of = call.func.value if isinstance(call.func, ast.Attribute) else None
                if isinstance(of, ast.Name) and of.id == joined.id and call.args:
                    yield call.args[0], node.target, node.iter


def _window_of(part: ast.expr, target: ast.expr) -> ast.expr | None:
    """What a part is a slice of, both of whose ends move with the loop's variable."""
    variables = {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
    for node in ast.walk(part):
        if not isinstance(node, ast.Subscript):
            continue
        axes = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for axis in axes:
            if isinstance(axis, ast.Slice) and axis.lower and axis.upper:
                ends = (axis.lower, axis.upper)
                if all(variables & _names(end) for end in ends) and _is_window(*ends):
                    return node.value
    return None


def _is_window(lower: ast.expr, upper: ast.expr) -> bool:
    """Whether the ends lie a fixed number apart: ``i`` and ``i + n``, ``i - n`` and ``i``."""
    for near, far, sign in ((lower, upper, ast.Add), (upper, lower, ast.Sub)):
        if isinstance(far, ast.BinOp) and isinstance(far.op, sign):
            sides = {ast.unparse(far.left), ast.unparse(far.right)}
            if ast.unparse(near) in sides:
                return True
    return False


def _is_every_value(iterated: ast.expr) -> bool:
    return (
        isinstance(iterated, ast.Call)
        and called_name(iterated) == "range"
        and 0 < len(iterated.args) < _RANGE_WITH_STEP
    )


def _names(expression: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
