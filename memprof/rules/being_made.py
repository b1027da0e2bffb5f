"""Containers that only the interpreter has yet: those that an expression is making."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from memprof.records import Holder
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.program import Place, called_name, place_of, source_of
from memprof.trace import Frame

__all__ = [
    "collecting_statement",
    "is_of_unowned",
    "making_in_library",
    "making_statement",
]

_MAKING = {
    list.__name__: (ast.ListComp, frozenset(("list", "sorted"))),
    dict.__name__: (ast.DictComp, frozenset(("dict",))),
}
"""Comprehensions by what they make, and functions that make it of what they are handed one by
one."""


def is_of_unowned(holder: Holder, kind: type) -> bool:
    """Whether a container of a kind has it that no object refers to."""
    return _unowned_kind(holder) == kind.__name__


def making_statement(holder: Holder, stack: Sequence[Frame]) -> Place | None:
    """The statement of the program that is making the container which holds something.

    By a comprehension, or a function that takes its items one by one. None where another object has
    it, or no line of a stack lies in such an expression.
    """
    return _making(holder, stack, is_of_user=True)


def making_in_library(holder: Holder, stack: Sequence[Frame]) -> Place | None:
    """The same of the code of libraries: ``return list(results)``."""
    return _making(holder, stack, is_of_user=False)


def _making(holder: Holder, stack: Sequence[Frame], *, is_of_user: bool) -> Place | None:
    kind = _unowned_kind(holder)
    if kind not in _MAKING:
        return None
    for frame in stack:
        if (frame_kind(frame.filename) is FrameKind.USER) is not is_of_user:
            continue
        program = None if frame.changed else source_of(frame.filename)
        place = program.at(frame.line) if program is not None else None
        if place is not None and _makes(place, kind, frame.line):
            return place
    return None


def collecting_statement(stack: Sequence[Frame]) -> tuple[Place, ast.expr] | None:
    """The statement on a stack that collects what an expression makes one by one, and that.

    ``trials = sorted((run(one) for one in settings), key=score)``. None where it is one of a
    function's arguments, which may be done with each as it comes.
    """
    for frame in stack:
        place = place_of(frame) if frame_kind(frame.filename) is FrameKind.USER else None
        statement = place.statement if place is not None else None
        if place is None or not isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Return)):
            continue
        value = statement.value
        functions = {name for _, names in _MAKING.values() for name in names}
        if isinstance(value, (ast.ListComp, ast.DictComp)):
            return place, value
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            is_making = value.func.id in functions and bool(value.args)
            if is_making and isinstance(value.args[0], (ast.GeneratorExp, ast.ListComp)):
                return place, value
    return None


def _unowned_kind(holder: Holder) -> str:
    return holder.unowned.owner if holder.unowned is not None else ""


def _makes(place: Place, kind: str, line: int) -> bool:
    comprehension, functions = _MAKING[kind]
    return any(
        isinstance(node, ast.expr) and node.lineno <= line <= (node.end_lineno or node.lineno)
        for node in ast.walk(place.statement)
        if isinstance(node, comprehension) or called_name(node) in functions
    )
