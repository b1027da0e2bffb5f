"""Calls that go backward and ask for the graph to be kept: by name, by place, or by `**options`."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from memprof.source_code.idioms import keyword
from memprof.source_code.program import Program, called_name
from memprof.source_code.settings import may_be_true

__all__ = ["asked_by_options", "asks_to_retain", "retain_argument"]

_NAME = "retain_graph"
_PLACES = {"backward": 1, "manual_backward": 2}
"""Where a method is given it, if not by name: ``loss.backward(None, True)``."""
_PLACES_OF_FUNCTIONS = {"backward": 2, "grad": 3}
"""Where functions of `torch.autograd` are."""
_AUTOGRAD = "autograd"


def retain_argument(call: ast.Call) -> ast.expr | None:
    """What a call that goes backward is given as ``retain_graph``, by name or by its place."""
    by_name = keyword(call, _NAME)
    if by_name is not None:
        return by_name
    name, function = called_name(call), call.func
    is_function = isinstance(function, ast.Name) or (
        isinstance(function, ast.Attribute) and _last_name(function.value) == _AUTOGRAD
    )
    at = (_PLACES_OF_FUNCTIONS if is_function else _PLACES).get(name)
    given = call.args[: at + 1] if at is not None else []
    if at is None or len(given) <= at or any(isinstance(one, ast.Starred) for one in given):
        return None
    return given[at]


def asked_by_options(call: ast.Call, programs: Sequence[Program]) -> ast.expr | None:
    """What a call is given by ``**options`` whose ``retain_graph`` may be true.

    That is where an entry of that name is written as true in a dictionary of the program's, of
    which it is not known which call it is for.
    """
    options = next((one.value for one in call.keywords if one.arg is None), None)
    if options is None or not any(_true_entries(programs)):
        return None
    return options


def asks_to_retain(call: ast.Call, programs: Sequence[Program]) -> bool:
    """Whether a call that goes backward may ask for its graph to be kept.

    What it is given is no constant, or it is given options that may have it.
    """
    given = retain_argument(call)
    if given is not None:
        return getattr(given, "value", True) is not False
    return asked_by_options(call, programs) is not None


def _true_entries(programs: Sequence[Program]) -> Iterator[ast.expr]:
    """Entries of dictionaries that ask for it: ``{"retain_graph": True}``, ``dict(…)``."""
    for program in programs:
        for node in program.nodes:
            for value in _entries(node):
                place = program.place(value)
                if place is not None and may_be_true(place, value, programs):
                    yield value


def _entries(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == _NAME:
                yield value
    elif isinstance(node, ast.Call) and called_name(node) == "dict":
        value_by_name = keyword(node, _NAME)
        if value_by_name is not None:
            yield value_by_name


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
