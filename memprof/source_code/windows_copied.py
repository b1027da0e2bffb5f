"""Overlapping windows of a sequence that a statement copies and joins into one tensor."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from memprof.source_code.program import LOOPS, Place, bound_names, called_name, calls_in
from memprof.source_code.verbs import JOINING

__all__ = ["CopiedWindows", "copied_windows"]

_CONVERTING = ("as_tensor", "asarray", "from_numpy", "tensor")
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
