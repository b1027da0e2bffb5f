"""The modes of torch that a line ran in: gradients on or off, autocast."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.program import FUNCTIONS, Place, called_name, place_of
from memprof.source_code.scopes import qualified_name
from memprof.trace import Frame

__all__ = ["is_under_no_grad", "under_autocast", "without_gradients"]

_OFF = frozenset(("no_grad", "inference_mode"))
_ON = "enable_grad"
_DECORATED = ("decorate_context", "torch/utils/_contextlib.py")
"""torch runs a function that bears ``@torch.no_grad()`` or its like inside this one."""
_OPTIMIZERS = "/torch/optim/"
"""Within a step of one of these a closure runs, if anything of a program or a library does."""
_AUTOCAST = "autocast"
_AUTOCAST_DECORATED = ("decorate_autocast", "torch/amp/autocast_mode.py")

_Switch = Callable[[Place, ast.expr], "bool | None"]
"""True where a context manager or decorator turns a mode on, False for off, None for neither."""


def without_gradients(stack: Sequence[Frame]) -> bool:
    """True if the innermost switch on ``stack`` (innermost frame first) turns gradients off.

    A library's function that bears a decorator of torch's is taken to turn them off: its source is
    not read, and hardly any turns them on but the closure of an optimizer's step, for which that
    does so itself.
    """
    for at, frame in enumerate(stack):
        if _is_optimizer_step(frame) and any(map(_is_outside_torch, stack[:at])):
            return False
        place = place_of(frame)
        switch = _switch(place, _grad_mode) if place is not None else None
        if switch is None and place is None and at + 1 < len(stack):
            is_decorated = _is(stack[at + 1], _DECORATED)
            switch = any(map(_is_optimizer_step, stack[at + 2 :])) if is_decorated else None
        if switch is not None:
            return not switch
    return False


def is_under_no_grad(place: Place) -> bool:
    """Whether the innermost switch around a statement, in its own function, turns gradients off."""
    return _switch(place, _grad_mode) is False


def under_autocast(stack: Sequence[Frame]) -> bool:
    """True if the innermost switch on ``stack`` (innermost frame first) turns autocast on.

    Also where torch's own frames show it. A switch whose ``enabled`` is no constant counts as on.
    """
    for frame in stack:
        place = place_of(frame)
        switch = _switch(place, _autocast_mode) if place is not None else None
        if switch is not None:
            return switch
        native = frame_kind(frame.filename) is FrameKind.NATIVE
        if _is(frame, _AUTOCAST_DECORATED) or (native and "at::autocast::" in frame.name):
            return True
    return False


def _is_outside_torch(frame: Frame) -> bool:
    return frame_kind(frame.filename) in (FrameKind.USER, FrameKind.LIBRARY)


def _is_optimizer_step(frame: Frame) -> bool:
    return _OPTIMIZERS in frame.filename.replace("\\", "/") and frame.name.endswith(".step")


def _is(frame: Frame, function: tuple[str, str]) -> bool:
    name, path = function
    plain = frame.filename.replace("\\", "/")
    return frame.name.rpartition(".")[2] == name and plain.endswith(path)


def _switch(place: Place, mode: _Switch) -> bool | None:
    """The mode that the innermost ``with`` or decorator around a statement sets; None without."""
    for node in (place.statement, *reversed(place.around)):
        if isinstance(node, (ast.With, ast.AsyncWith)):
            expressions = [item.context_expr for item in node.items]
        elif isinstance(node, FUNCTIONS):
            expressions = node.decorator_list
        else:
            continue
        switches = [switch for one in expressions if (switch := mode(place, one)) is not None]
        if switches:
            return switches[-1]
        if isinstance(node, FUNCTIONS):
            return None
    return None


def _grad_mode(_place: Place, expression: ast.expr) -> bool | None:
    name = called_name(expression) or ast.unparse(expression).rpartition(".")[2]
    if name in _OFF:
        return False
    if name == _ON:
        return True
    if name == "set_grad_enabled" and isinstance(expression, ast.Call) and expression.args:
        value = expression.args[0]
        return bool(value.value) if isinstance(value, ast.Constant) else None
    return None


def _autocast_mode(place: Place, expression: ast.expr) -> bool | None:
    """The mode that ``torch.autocast``, by any name, or a method ``autocast`` sets."""
    if not isinstance(expression, ast.Call):
        return None
    name = qualified_name(place, expression.func)
    method = isinstance(expression.func, ast.Attribute) and not name
    last = called_name(expression) if method else name.rpartition(".")[2]
    if last != _AUTOCAST:
        return None
    enabled = [keyword.value for keyword in expression.keywords if keyword.arg == "enabled"]
    return not any(isinstance(one, ast.Constant) and not one.value for one in enabled)
