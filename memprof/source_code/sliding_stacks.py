"""Stacks of the last few frames: each has all but one part of the one before it."""

from __future__ import annotations

import ast

from memprof.source_code.call_sites import handed_over
from memprof.source_code.idioms import keyword
from memprof.source_code.program import Place, assigned, called_name, calls_in, own_calls
from memprof.source_code.scopes import parameters
from memprof.source_code.values import values_of
from memprof.source_code.verbs import JOINING

__all__ = ["sliding_stack"]

_PAIR = 2
_LISTS = ("list", "tuple")
_DEEPEST = 3
"""Names that are followed, one to the next."""


def sliding_stack(place: Place) -> str:
    """What a statement takes over of the stack before: ``state[1:]``; empty for anything else.

    ``following = torch.cat([state[1:], frame])``, where the function makes it the next ``state``;
    or ``torch.stack(list(frames))`` of a ``deque(maxlen=4)``, which is not emptied there, or of
    ``frames = frames[1:] + [frame]``.
    """
    for call in own_calls(place.statement, *JOINING):
        joined = call.args[0] if call.args else None
        if isinstance(joined, (ast.List, ast.Tuple)) and len(joined.elts) == _PAIR:
            older = _older(place, joined.elts)
            if older is not None:
                return ast.unparse(older)
        frames = _whole(joined)
        name = ast.unparse(frames) if frames is not None else ""
        if name and (_is_short_deque(place, name) or _is_rolled(place, name)):
            return "" if _is_now_and_then(place) else name
    return ""


def _older(place: Place, parts: list[ast.expr]) -> ast.Subscript | None:
    """The one of two parts that is the stack before, but for its first or last entries."""
    for part, other in (parts, parts[::-1]):
        if not isinstance(part, ast.Subscript) or not _drops_an_end(part.slice):
            continue
        stack = ast.unparse(part.value)
        is_both = any(ast.unparse(n) == stack for n in ast.walk(other) if isinstance(n, ast.expr))
        if not is_both and stack in _carried(place):
            return part
    return None


def _drops_an_end(index: ast.expr) -> bool:
    """``[1:]``, ``[:-1]`` or ``[:, 1:]``: one axis without its first or last entries."""
    axes = index.elts if isinstance(index, ast.Tuple) else [index]
    cut = [one for one in axes if isinstance(one, ast.Slice) and (one.lower or one.upper)]
    whole = [one for one in axes if isinstance(one, ast.Slice) and not (one.lower or one.upper)]
    others = [one for one in axes if isinstance(one, ast.Constant) and one.value is Ellipsis]
    if len(cut) != 1 or len(cut) + len(whole) + len(others) != len(axes) or cut[0].step:
        return False
    lower, upper = cut[0].lower, cut[0].upper
    if upper is None:
        return isinstance(lower, ast.Constant)
    is_from_end = isinstance(upper, ast.UnaryOp) and isinstance(upper.op, ast.USub)
    return lower is None and is_from_end


def _carried(place: Place) -> set[str]:
    """What a statement binds, and what the function binds to that: ``state = following``."""
    names = {ast.unparse(target) for target, _ in assigned(place.statement)}
    for node in ast.walk(place.scope):
        for target, value in assigned(node):
            if isinstance(value, (ast.Name, ast.Attribute)) and ast.unparse(value) in names:
                names.add(ast.unparse(target))
    return names


def _whole(joined: ast.expr | None) -> ast.expr | None:
    """The frames of ``list(frames)``, of ``[one for one in frames]`` or of the name alone."""
    if isinstance(joined, ast.Call) and called_name(joined) in _LISTS:
        joined = joined.args[0] if len(joined.args) == 1 else None
    if isinstance(joined, (ast.ListComp, ast.GeneratorExp)) and len(joined.generators) == 1:
        joined = joined.generators[0].iter if not joined.generators[0].ifs else None
    return joined if isinstance(joined, (ast.Name, ast.Attribute)) else None


def _is_short_deque(place: Place, name: str) -> bool:
    """Whether a name is always a deque's for a few items, which the function never empties."""
    if not _shows_deque(place, name, _DEEPEST):
        return False
    emptied = [call.func for call in calls_in(place.scope, "clear")]
    return not any(isinstance(f, ast.Attribute) and ast.unparse(f.value) == name for f in emptied)


def _shows_deque(place: Place, name: str, depth: int) -> bool:
    """Whether a name is a short deque's, or of a list of its items, also handed over by a call.

    ``self.frames = frames``, where the class is called with ``list(self.recent)``.
    """
    bound = [one for one in values_of(place, name) if not _is_nothing(one)]
    return bool(bound) and all(_comes_of_deque(place, one, depth) for one in bound)


def _comes_of_deque(place: Place, value: ast.expr | None, depth: int) -> bool:
    if _is_deque(value):
        return True
    within = place.program.place(value) if value is not None else None
    items = _whole(value)
    if within is None or items is None or not depth:
        return False
    function = within.function
    if isinstance(items, ast.Name) and function and items.id in parameters(function):
        handed = handed_over(within, items, (within.program,))
        if handed is None:
            return False
        within, argument = handed
        items = _whole(argument)
    return items is not None and _shows_deque(within, ast.unparse(items), depth - 1)


def _is_nothing(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _is_rolled(place: Place, name: str) -> bool:
    """Whether a list is made of itself without its first: ``frames = frames[1:] + [frame]``."""
    return any(
        isinstance(value, ast.BinOp)
        and isinstance(value.op, ast.Add)
        and isinstance(value.left, ast.Subscript)
        and ast.unparse(value.left.value) == name
        and _drops_an_end(value.left.slice)
        for value in values_of(place, name)
    )


def _is_now_and_then(place: Place) -> bool:
    """Whether the statement runs each so many times: clips side by side have no frame in common."""
    tests = [node.test for node in place.around if isinstance(node, ast.If)]
    return any(isinstance(node, ast.Mod) for test in tests for node in ast.walk(test))


def _is_deque(value: ast.expr | None) -> bool:
    if not isinstance(value, ast.Call) or called_name(value) != "deque":
        return False
    length = keyword(value, "maxlen") or (value.args[1] if len(value.args) == _PAIR else None)
    return length is not None and not (
        isinstance(length, ast.Constant) and length.value in (None, 1)
    )
