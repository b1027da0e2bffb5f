"""Whether a line ran with gradients off, as far as its stack and the user's source show it."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from memprof.source_code.program import FUNCTIONS, Place, called_name, place_of
from memprof.trace import Frame

__all__ = ["without_gradients"]

_OFF = frozenset(("no_grad", "inference_mode"))
_ON = "enable_grad"
_DECORATED = ("decorate_context", "torch/utils/_contextlib.py")
"""torch runs a function that bears ``@torch.no_grad()`` or its like inside this one."""


def without_gradients(stack: Sequence[Frame]) -> bool:
    """Whether the innermost switch on ``stack`` (innermost frame first) turns gradients off.

    A library's function that bears a decorator of torch's is taken to turn them off: its source is
    not read, and hardly any turns them on.
    """
    for at, frame in enumerate(stack):
        place = place_of(frame)
        switch = _switch(place) if place is not None else None
        if switch is None and place is None and at + 1 < len(stack) and _decorates(stack[at + 1]):
            switch = False
        if switch is not None:
            return not switch
    return False


def _decorates(frame: Frame) -> bool:
    name, path = _DECORATED
    plain = frame.filename.replace("\\", "/")
    return frame.name.rpartition(".")[2] == name and plain.endswith(path)


def _switch(place: Place) -> bool | None:
    """True where the innermost ``with`` or decorator turns gradients on, None without any."""
    for node in (place.statement, *reversed(place.around)):
        if isinstance(node, (ast.With, ast.AsyncWith)):
            asked = [_asked(item.context_expr) for item in node.items]
        elif isinstance(node, FUNCTIONS):
            asked = [_asked(decorator) for decorator in node.decorator_list]
        else:
            continue
        known = [one for one in asked if one is not None]
        if known:
            return known[-1]
        if isinstance(node, FUNCTIONS):
            return None
    return None


def _asked(expression: ast.expr) -> bool | None:
    name = called_name(expression) or ast.unparse(expression).rpartition(".")[2]
    if name in _OFF:
        return False
    if name == _ON:
        return True
    if name == "set_grad_enabled" and isinstance(expression, ast.Call) and expression.args:
        value = expression.args[0]
        return bool(value.value) if isinstance(value, ast.Constant) else None
    return None
