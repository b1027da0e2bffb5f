"""When a mechanical change would break the program: what rules ask before they offer a patch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import numpy as np

from memprof.advice.case import Case
from memprof.advice.saving import timeline_of
from memprof.analysis.program import Place, bound_names, calls_in
from memprof.analysis.sites import sites
from memprof.analysis.steps import step_of_event
from memprof.trace import Action, Phase

__all__ = [
    "goes_backward",
    "is_number",
    "is_object",
    "is_raised",
    "makes_number",
    "serves_training",
]

_LARGEST_NUMBER = 8
"""Bytes of the widest real type."""
_OF_TENSORS = frozenset(("T", "data", "device", "dtype", "grad", "grad_fn", "mT", "ndim", "shape"))
"""Attributes that tensors have as well; others are read of objects that a model returns."""


def is_number(case: Case, place: Place, value: ast.expr) -> bool | None:
    """Whether a value in a statement is a tensor of one number; None where it was not recorded."""
    made = _binding(place, value) if isinstance(value, ast.Name) else place
    return makes_number(case, made) if made is not None else None


def makes_number(case: Case, made: Place) -> bool | None:
    """Whether the last thing that a statement allocates in each step is one number."""
    trace = case.trace
    if trace is None:
        return None
    known = sites(trace.tables)
    lines = range(made.line, (made.statement.end_lineno or made.line) + 1)
    own = [
        row
        for row, frame in enumerate(known.frames)
        if frame.filename == made.program.filename and frame.line in lines
    ]
    allocs = np.isin(known.of_stack[trace.events.stack], own)
    rows = np.flatnonzero(allocs & (trace.events.action == Action.ALLOC))
    if not len(rows):
        return None
    steps = step_of_event(trace)[rows]
    last = rows[np.append(steps[1:] != steps[:-1], True)]
    return bool((trace.events.size[last] <= _LARGEST_NUMBER).all())


def _binding(place: Place, name: ast.Name) -> Place | None:
    """The last statement of the function, before this one, that binds a name."""
    found: Place | None = None
    for node in ast.walk(place.scope):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.lineno < place.line:
            binds = any(isinstance(t, ast.Name) and t.id == name.id for t in bound_names(node))
            if binds and (found is None or node.lineno > found.line):
                found = place.program.place(node)
    return found


def is_object(place: Place, value: ast.expr) -> bool:
    """Whether the function reads attributes or named entries of a value, as of no tensor."""
    names = {ast.unparse(target) for target in bound_names(place.statement)} | {ast.unparse(value)}
    called = {id(call.func) for call in calls_in(place.scope)}
    for node in ast.walk(place.scope):
        inner = getattr(node, "value", None)
        if not isinstance(inner, ast.expr) or ast.unparse(inner) not in names:
            continue
        if isinstance(node, ast.Attribute) and id(node) not in called:
            return node.attr not in _OF_TENSORS
        key = node.slice if isinstance(node, ast.Subscript) else None
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            return True
    return False


def goes_backward(place: Place, text: str) -> bool:
    """Whether a backward pass starts from what an expression names; attributes in any function."""
    scope = place.program.tree if "." in text else place.scope
    started = {
        one
        for call in calls_in(scope, "backward", "grad")
        for one in _texts([call.func, *call.args])
    }
    for node in sorted(ast.walk(scope), key=lambda n: -getattr(n, "lineno", 0)):
        if not isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) or node.value is None:
            continue
        if any(ast.unparse(target) in started for target in bound_names(node)):
            started |= set(_texts([node.value]))
    return text in started


def _texts(nodes: list[ast.expr]) -> Iterator[str]:
    for node in nodes:
        for inner in ast.walk(node):
            if isinstance(inner, (ast.Name, ast.Attribute)):
                yield ast.unparse(inner)


def is_raised(place: Place, name: str) -> bool:
    """Whether something of that last name is raised, or asked for more than its text."""
    last = name.rpartition(".")[2]
    for node in ast.walk(place.program.tree):
        inner = node.exc if isinstance(node, ast.Raise) else getattr(node, "value", None)
        asks = isinstance(node, (ast.Raise, ast.Attribute))
        if asks and isinstance(inner, ast.expr) and ast.unparse(inner).rpartition(".")[2] == last:
            return True
    return False


def serves_training(case: Case, place: Place) -> bool:
    """Whether a backward pass freed something that was made within a function."""
    trace, function = case.trace, place.function
    if trace is None or function is None:
        return False
    lines = range(function.lineno, (function.end_lineno or function.lineno) + 1)
    tables = trace.tables
    inside = {
        row
        for row, frame in enumerate(tables.frames)
        if frame.filename == place.program.filename and frame.line in lines
    }
    through = np.array([not inside.isdisjoint(stack) for stack in tables.stacks])
    lives = timeline_of(trace).lives
    rows = through[lives.stack] & (lives.free < len(trace.events))
    phases = np.array([label.phase for label in tables.labels])
    return bool((phases[trace.events.label[lives.free[rows]]] == Phase.BACKWARD).any())
