"""Where a program wraps its model in torch's ``DistributedDataParallel``, with which buckets."""

from __future__ import annotations

import ast

from memprof.advice.case import Case
from memprof.source_code.idioms import keyword
from memprof.source_code.patch import diff, with_keyword
from memprof.source_code.program import Place, Program, bound_names, calls_in

__all__ = ["unviewed", "viewed"]

_CLASS = "DistributedDataParallel"
_VIEW = "gradient_as_bucket_view"
_MOST_POSITIONAL = 6
"""More positional arguments than anyone writes might reach the one that is meant."""


def unviewed(case: Case) -> list[tuple[Place, ast.Call]]:
    """The calls that make a wrapper whose gradients are no views of its buckets.

    Only those on the stack that made the buckets, where one is.
    """
    found = [
        (place, call)
        for program in case.programs
        for call in _wrappings(program)
        if _has_copies(call) and (place := program.place(call)) is not None
    ]
    near = {id(place.statement) for _, place in case.frames}
    return [pair for pair in found if id(pair[0].statement) in near] or found


def viewed(place: Place, call: ast.Call) -> str:
    """The patch that makes them views; empty where the call's arguments are not all in sight."""
    hidden = any(isinstance(argument, ast.Starred) for argument in call.args)
    asked = keyword(call, _VIEW)
    computed = asked is not None and not isinstance(asked, ast.Constant)
    if hidden or computed or len(call.args) > _MOST_POSITIONAL:
        return ""
    return diff(place.program, with_keyword(call, _VIEW, "True"))


def _has_copies(call: ast.Call) -> bool:
    value = keyword(call, _VIEW)
    return not (isinstance(value, ast.Constant) and value.value)


def _wrappings(program: Program) -> list[ast.Call]:
    names = _names(program)
    return [call for call in calls_in(program.tree) if ast.unparse(call.func) in names]


def _names(program: Program) -> set[str]:
    """What torch's class is called in a file: an imported name, another one, or a dotted path."""
    names = {
        alias.asname or alias.name
        for node in ast.walk(program.tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch"
        for alias in node.names
        if alias.name == _CLASS
    }
    names |= {
        text
        for node in ast.walk(program.tree)
        if isinstance(node, ast.Attribute)
        and (text := ast.unparse(node)).endswith(f"parallel.{_CLASS}")
    }
    for node in ast.walk(program.tree):
        if isinstance(node, ast.Assign) and ast.unparse(node.value) in names:
            names |= {ast.unparse(target) for target in bound_names(node)}
    return names
