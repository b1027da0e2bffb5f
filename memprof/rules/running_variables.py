"""Variables of functions that are still running: what a stack made, and which name has it."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.idioms import module_itself
from memprof.source_code.program import Place, bound_names, called_name, place_of
from memprof.source_code.scopes import parameters
from memprof.trace import Frame

__all__ = ["still_running", "variable_of"]

_MAKING = "__init__"
"""The method in which an object is made."""
_COMPREHENSIONS = ("<dictcomp>", "<genexpr>", "<listcomp>", "<setcomp>")
"""Likewise of a frame that a comprehension has."""


def still_running(made_by: Sequence[Frame], now: Sequence[Frame]) -> int | None:
    """Where, from the outer end, the function stands that has gone on to another line since.

    None where that is no function of the program's.
    """
    for back in range(1, min(len(made_by), len(now)) + 1):
        then, later = made_by[-back], now[-back]
        if (then.filename, then.name) != (later.filename, later.name):
            return None
        if then.line != later.line:
            return back if frame_kind(then.filename) is FrameKind.USER else None
    return None


def variable_of(place: Place, inner: Sequence[Frame], *class_names: str) -> str:
    """The variable that a statement binds to what the inner frames return; empty for none.

    Where they make an object that has what is looked for, ``class_names`` are what its class may be
    called: the name of a frame may be that of a class it inherits from. A statement that moves a
    module binds nothing, and it is the variable's: ``vae.to(device)``.
    """
    user = [frame for frame in inner if frame_kind(frame.filename) is FrameKind.USER]
    while user and user[-1].name.endswith(_COMPREHENSIONS):
        user.pop()  # a part of the statement, which some versions of Python call as a function
    statement = place.statement
    if isinstance(statement, ast.Expr):
        moved = module_itself(statement.value)
        if user or not class_names or moved is statement.value or not isinstance(moved, ast.Name):
            return ""
        return "" if moved.id in parameters(place.scope) else moved.id  # a caller has that as well
    if isinstance(statement, ast.Assign):
        value = statement.value if len(statement.targets) == 1 else None
    else:
        value = statement.value if isinstance(statement, ast.AnnAssign) else None
    targets = bound_names(statement)
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    if value is None or len(names) != len(targets):
        return ""
    if len(names) == 1 and not user:
        return names[0]
    if not user:
        return ""
    if user[-1].name.rpartition(".")[2] == _MAKING:
        return _of_object(value, names, class_names)
    returned = _returned_as(user[-1], class_names)
    if len(names) == 1 and returned == 0:
        return names[0]
    if returned is None or len(names) < 2 or returned >= len(names):
        return ""  # ``first, second = made()[:2]``
    return names[returned]


def _of_object(value: ast.expr, names: Sequence[str], class_names: Sequence[str]) -> str:
    """The variable of the object whose ``__init__`` a statement runs: ``a, b = A(), B()``."""
    if isinstance(value, ast.Tuple):
        at = _made_by_class(value, class_names) if len(value.elts) == len(names) else None
        return names[at] if at is not None else ""
    if isinstance(value, (ast.ListComp, ast.SetComp)):
        value = value.elt  # all are of that class
    is_its = called_name(module_itself(value)) in class_names
    return names[0] if len(names) == 1 and is_its else ""


def _returned_as(frame: Frame, class_names: Sequence[str]) -> int | None:
    """Which of the values that a function returns a statement of it makes; None: of none."""
    place = place_of(frame)
    if place is None or place.function is None:
        return None
    if isinstance(place.statement, ast.Return):
        value = place.statement.value
        if not isinstance(value, ast.Tuple):
            return 0
        return _made_by_class(value, class_names) if class_names else _computed(value)
    targets = bound_names(place.statement)
    if len(targets) != 1 or not isinstance(targets[0], ast.Name):
        return None
    name = targets[0].id
    for node in ast.walk(place.function):
        if isinstance(node, ast.Return) and node.value is not None:
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            named = [value.id if isinstance(value, ast.Name) else "" for value in values]
            return named.index(name) if name in named else None
    return None


def _computed(values: ast.Tuple) -> int | None:
    """Which of several values is computed, where the others have names: ``return head(x), h``."""
    known = (ast.Attribute, ast.Constant, ast.Name)
    computed = [at for at, one in enumerate(values.elts) if not isinstance(one, known)]
    return computed[0] if len(computed) == 1 else None


def _made_by_class(values: ast.Tuple, class_names: Sequence[str]) -> int | None:
    """Which of several values is a new object of such a class: ``return A(), B().eval()``."""
    made = [
        at for at, one in enumerate(values.elts) if called_name(module_itself(one)) in class_names
    ]
    return made[0] if len(made) == 1 else None
