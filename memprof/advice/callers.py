"""Which call hands a tensor to the function that keeps it; no rule stands here."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from memprof.advice.case import Case
from memprof.analysis.program import Place

__all__ = ["Handed", "handed_over"]

_DEEPEST = 3
"""Functions that hand their own parameter on, from the user's call down to what keeps it."""

_COMMON = frozenset(("add", "append", "extend", "get", "insert", "put", "set", "update"))
"""Names of containers' own methods: calls elsewhere may be of anything."""

Handed = tuple[Place, ast.expr]
"""The statement of a call, and the argument in it."""


def handed_over(case: Case, place: Place | None, value: ast.expr | None) -> Handed | None:
    """The call that a kept value comes from, where it is a parameter of the function around.

    Of ``meter.update(loss)`` for ``self.total += value`` in ``update``. Calls in functions that the
    tensor's stack runs through come first. None where the value is made right there, or no call is
    found.
    """
    found: Handed | None = None
    for _ in range(_DEEPEST):
        following = _call_of(case, place, value)
        if following is None:
            break
        found = following
        place, value = found
    return found


def _call_of(case: Case, place: Place | None, value: ast.expr | None) -> Handed | None:
    function = place.function if place is not None else None
    if place is None or function is None or not isinstance(value, ast.Name):
        return None
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    keywords = [a.arg for a in function.args.kwonlyargs]
    method = place.class_ is not None and names[:1] in (["self"], ["cls"])
    if value.id not in [*names[method:], *keywords]:
        return None
    called = function.name
    if called == "__init__" and place.class_ is not None:
        called = place.class_.name
    position = names.index(value.id) - method if value.id in names else -1
    return next(_arguments(case, place, called, position, value.id), None)


def _arguments(case: Case, place: Place, called: str, position: int, name: str) -> Iterator[Handed]:
    """Calls of ``called``, those on the tensor's stack first, with what they pass."""
    scopes = {id(p.scope) for _, p in case.frames}
    calls = [(call, where) for call, where in case.calls(called) if where.scope is not place.scope]
    if called in _COMMON:
        calls = [(call, where) for call, where in calls if _is_of(case, place, call, where)]
    calls.sort(key=lambda pair: id(pair[1].scope) not in scopes)
    for call, where in calls:
        passed = [k.value for k in call.keywords if k.arg == name]
        if 0 <= position < len(call.args):
            passed += [call.args[position]]
        if passed and not isinstance(passed[0], (ast.Constant, ast.Starred)):
            yield where, passed[0]


def _is_of(case: Case, place: Place, call: ast.Call, where: Place) -> bool:
    """Whether a call is of the method around ``place``: by ``self``, or by a name that holds it."""
    receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
    if receiver is None:
        return place.class_ is None
    text = ast.unparse(receiver)
    if text in ("self", "cls"):
        return where.class_ is place.class_
    names = {link.name for holder in case.found.holders for link in holder.links}
    return text.rsplit(".", maxsplit=1)[-1] in names
