"""Exception handlers: which of them store the exception, and so the frames of the failed call."""

from __future__ import annotations

import ast

from memprof.source_code.program import FUNCTIONS, calls_in, loaded_names, place_of
from memprof.source_code.verbs import FILLING
from memprof.trace import Frame

__all__ = ["exception_store"]


def exception_store(frame: Frame, *, returned: bool = False) -> ast.stmt | None:
    """The statement that stores the exception, in a handler around a frame's line; else None.

    ``returned`` where one that is returned is known to be stored by who called.
    """
    place = place_of(frame)
    for node in reversed(place.around if place is not None else ()):
        if isinstance(node, FUNCTIONS):
            return None
        if isinstance(node, ast.Try) and any(_inside(s, frame.line) for s in node.body):
            for handler in node.handlers:
                statement = _store_in(handler, returned=returned)
                if statement is not None:
                    return statement
    return None


def _store_in(handler: ast.ExceptHandler, *, returned: bool) -> ast.stmt | None:
    for block in handler.body:
        for statement in ast.walk(block):
            if not isinstance(statement, (ast.Assign, ast.Expr, ast.Return)):
                continue
            if statement.value is None or (isinstance(statement, ast.Return) and not returned):
                continue
            values = [statement.value]
            if isinstance(statement, ast.Expr):  # errors.append(error)
                fillings = calls_in(statement, *FILLING)
                values = [argument for call in fillings for argument in call.args]
            if any(_is_exception(value, handler.name) for value in values):
                return statement
    return None


def _is_exception(value: ast.expr, name: str | None) -> bool:
    """Whether a value holds the exception that a handler has by this name, or its traceback."""
    if name and name in _plain_names(value):
        return True
    if isinstance(value, ast.Call):
        return False
    attributes = [n.attr for n in ast.walk(value) if isinstance(n, ast.Attribute)]
    return "__traceback__" in attributes


def _plain_names(value: ast.expr) -> set[str]:
    """Names whose objects a value keeps; ``str(e)`` keeps nothing of ``e``."""
    if isinstance(value, ast.Call):
        return set()
    if isinstance(value, (ast.Tuple, ast.List)):
        return set().union(*map(_plain_names, value.elts))
    if isinstance(value, ast.IfExp):  # what is asked decides, and is not kept
        return _plain_names(value.body) | _plain_names(value.orelse)
    if isinstance(value, ast.Compare):
        return set()
    return loaded_names(value)


def _inside(node: ast.AST, line: int) -> bool:
    """Whether a line is one of a node's."""
    return getattr(node, "lineno", 0) <= line <= (getattr(node, "end_lineno", None) or 0)
