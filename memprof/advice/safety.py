"""When a mechanical change would break the program: what rules ask before they offer a patch."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import numpy as np

from memprof.advice.case import Case
from memprof.advice.flow import flow_into, flow_of
from memprof.advice.saving import timeline_of
from memprof.analysis.program import Place, Program, bound_names, called_name, calls_in
from memprof.analysis.sites import sites
from memprof.analysis.steps import step_of_event
from memprof.trace import Action, Phase

__all__ = [
    "goes_backward",
    "is_number",
    "is_object",
    "is_python_number",
    "is_raised",
    "makes_number",
    "serves_training",
    "survives_call",
    "used_as_tensor",
]

_ONE_NUMBER, _TWO_NUMBERS = 4, 8
"""Bytes of a single float, and of two, or of a double."""
_TO_PYTHON = frozenset(("item", "float", "int", "len", "bool", "str", "tolist"))
_OF_TENSORS = frozenset(("T", "data", "device", "dtype", "grad", "grad_fn", "mT", "ndim", "shape"))
"""Attributes that tensors have as well; others are read of objects that a model returns."""


def is_number(case: Case, place: Place, value: ast.expr) -> bool | None:
    """Whether a value in a statement is a tensor of one number; None where that is not known.

    What ``backward()`` is called on without a gradient is one, and so is ``x.mean()``.
    """
    made = _binding(place, value) if isinstance(value, ast.Name) else place
    if isinstance(value, ast.Name) and _starts_backward(place, value.id):
        return True
    known = makes_number(case, made) if made is not None else None
    if known is None and made is not None:
        last = value if made is place else getattr(made.statement, "value", None)
        plain = not isinstance(made.statement, ast.AugAssign) and _is_reduction(last)
        return True if plain else None
    return known


def _starts_backward(place: Place, name: str) -> bool:
    calls = calls_in(place.scope, "backward")
    return any(
        not call.args
        and all(keyword.arg not in ("gradient", None) for keyword in call.keywords)
        and isinstance(call.func, ast.Attribute)
        and ast.unparse(call.func.value) == name
        for call in calls
    )


def _is_reduction(value: ast.AST | None) -> bool:
    """``x.mean()``, ``x.sum()``: without a dimension the result is one number."""
    bare = isinstance(value, ast.Call) and not value.args and not value.keywords
    return bare and called_name(value) in ("mean", "sum") if value is not None else False


def is_python_number(case: Case, value: ast.expr) -> bool:
    """Whether a value is no tensor: ``loss.item()``, or a call of what returns nothing else."""
    called = called_name(value)
    if called in _TO_PYTHON or isinstance(value, ast.Constant):
        return True
    functions = [f for program in case.everywhere for f in program.functions(called)]
    returned = [
        node.value
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Return)
    ]
    return bool(called and returned) and all(
        one is not None and (called_name(one) in _TO_PYTHON or isinstance(one, ast.Constant))
        for one in returned
    )


def makes_number(case: Case, made: Place) -> bool | None:
    """Whether the last thing that a statement allocates in each step is one number.

    None where that is not recorded, or may be a double or two floats.
    """
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
    last = trace.events.size[rows[np.append(steps[1:] != steps[:-1], True)]]
    if (last > _TWO_NUMBERS).any():
        return False
    return True if (last <= _ONE_NUMBER).all() else None


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
    """Whether the function reads attributes or entries of a value, or goes through it.

    So it does with what a model returns that is no tensor: an object, a dict, a tuple.
    """
    names = {ast.unparse(target) for target in bound_names(place.statement)} | {ast.unparse(value)}
    called = {id(call.func) for call in calls_in(place.scope)}
    for node in ast.walk(place.scope):
        inner = getattr(node, "value", None)
        if any(ast.unparse(one) in names for one in _taken_apart(node)):
            return True
        if not isinstance(inner, ast.expr) or ast.unparse(inner) not in names:
            continue
        if isinstance(node, ast.Attribute) and id(node) not in called:
            return node.attr not in _OF_TENSORS
        key = node.slice if isinstance(node, ast.Subscript) else None
        if isinstance(key, ast.Constant) and isinstance(key.value, (str, int)):
            return True
    return False


def _taken_apart(node: ast.AST) -> list[ast.expr]:
    """What a node goes through one by one: in a loop, in ``zip``, into several names."""
    if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
        return [node.iter]
    if isinstance(node, ast.Starred):
        return [node.value]
    if isinstance(node, ast.Assign) and any(isinstance(t, ast.Tuple) for t in node.targets):
        return [node.value]
    if isinstance(node, ast.Call) and called_name(node) in ("enumerate", "list", "tuple", "zip"):
        return node.args
    return []


def goes_backward(place: Place, text: str, programs: Sequence[Program] = ()) -> bool:
    """Whether a backward pass may start from what an expression names, or from what comes of it."""
    return flow_of(programs, place, text, through=True).learned


def used_as_tensor(case: Case, place: Place, text: str) -> bool:
    """Whether the program may do with what a name holds what it cannot do with a number."""
    return flow_of(case.everywhere, place, text, through=False).more_than_shown


def survives_call(case: Case, place: Place, argument: ast.expr, *, number: bool) -> bool:
    """Whether the function that a call hands a tensor to can do with a detached one, or a number.

    Without a graph nothing can be learned from it; a number is no tensor.
    """
    programs = case.everywhere
    if flow_into(programs, place, argument, through=True).learned:
        return False
    return not (number and flow_into(programs, place, argument, through=False).more_than_shown)


def is_raised(place: Place, text: str, programs: Sequence[Program] = ()) -> bool:
    """Whether an exception that a name holds may be raised, or asked for more than its text."""
    return flow_of(programs, place, text, through=False).more_than_shown


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
