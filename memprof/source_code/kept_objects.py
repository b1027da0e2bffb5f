"""Objects that a function goes on keeping when what it made them for is over."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from memprof.source_code.idioms import filling
from memprof.source_code.program import Place, bound_names, place_of, root_name
from memprof.trace import Frame

__all__ = ["kept_object"]

_OUTERMOST = "<module>"


def kept_object(way: Sequence[Frame], now: Sequence[Frame]) -> Place | None:
    """The statement that keeps the object by which something was done, in a call that is over.

    ``self.completed[name] = trainer``, after ``trainer = Trainer(model).fit(data)``. None where no
    function on the way keeps a variable of such a statement; where its call, or one around it, is
    running; and where that may be called again from a loop.

    Args:
        way: the program's frames by which it was done, innermost first.
        now: those that run.
    """
    for at, frame in enumerate(way):
        place = place_of(frame)
        if place is None or place.function is None:
            continue
        keeping = _keeping(place)
        if keeping is not None:
            return keeping if _is_over(way[at:], now) else None
    return None


def _keeping(place: Place) -> Place | None:
    """The later statement of its function that puts a variable of a statement elsewhere."""
    names = {one.id for one in bound_names(place.statement) if isinstance(one, ast.Name)}
    value = getattr(place.statement, "value", None)
    if isinstance(value, ast.Call):
        names.add(root_name(value.func))
    names -= {"", "self", "cls"}
    for node in ast.walk(place.scope):
        if not isinstance(node, (ast.Assign, ast.Expr)) or node.lineno < place.line:
            continue
        growth = filling(node)
        kept = list(growth.values) if growth is not None else []
        if isinstance(node, ast.Assign) and isinstance(
            node.targets[0], (ast.Attribute, ast.Subscript)
        ):
            kept.append(node.value)
        if any(isinstance(one, ast.Name) and one.id in names for one in kept):
            return place.program.place(node)
    return None


def _is_over(way: Sequence[Frame], now: Sequence[Frame]) -> bool:
    """Whether a call, the first of a way, has returned, and none around it may come again.

    The frames that both have are of the same calls, up to where their lines part.
    """
    for frame, running in zip(reversed(way), reversed(now), strict=False):
        place = place_of(frame)
        if place is None and frame.name == running.name == _OUTERMOST:
            continue  # what runs the program, from a text that is not here
        if place is None or place.loop is not None:
            return False
        if frame != running:
            return (frame.filename, frame.name) == (running.filename, running.name)
    return False
