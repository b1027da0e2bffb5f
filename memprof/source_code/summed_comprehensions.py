"""Losses that a comprehension computes, and one backward pass from nothing but their sum."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from memprof.source_code.idioms import is_partly_cut
from memprof.source_code.program import Place, called_name, calls_in, loaded_names, root_name
from memprof.source_code.scopes import nodes_around, reads_of
from memprof.source_code.verbs import CUTTING, JOINING, NUMBER_FUNCTIONS, TEXT_FUNCTIONS

__all__ = ["goes_backward_from_sum"]

_ADDING = frozenset(("mean", "sum"))
"""Functions and methods by which each of several values has its own part in the result."""
_LINEAR = (ast.Add, ast.Sub, ast.Mult, ast.Div)
_DEEPEST = 4
"""Names that are bound one after the other, from the comprehension to the backward pass."""
_LEARNING = "backward"
_OF_TORCH = frozenset(("F", "functional", "nn", "torch"))
"""Names that torch's modules are imported by."""


def _calls_more_than_items(made: ast.ListComp | ast.GeneratorExp) -> bool:
    """Whether each turn calls something besides methods of its item and functions of torch.

    What it goes over is computed before the first turn: all passes, where it is their results.
    """
    targets = {
        node.id
        for generator in made.generators
        for node in ast.walk(generator.target)
        if isinstance(node, ast.Name)
    }
    return any(
        isinstance(call.func, ast.Name) or root_name(call.func) not in targets | _OF_TORCH
        for call in calls_in(made.elt)
    )


def goes_backward_from_sum(place: Place) -> bool:
    """Whether a backward pass starts from a sum or mean of what a comprehension here computes.

    ``torch.stack([loss_of(x) for x in xs]).mean().backward()``, also by way of variables. What else
    is done with the values is done without their graph: so each could have a pass of its own.
    """
    comprehensions = [
        node
        for node in ast.walk(place.statement)
        if isinstance(node, (ast.ListComp, ast.GeneratorExp)) and not is_partly_cut(node.elt)
    ]
    if len(comprehensions) != 1 or hasattr(place.statement, "body"):
        return False
    (made,) = comprehensions
    if not _calls_more_than_items(made):
        return False
    return _goes_backward(place, made, nodes_around(place.statement, made), _DEEPEST) is True


def _goes_backward(
    place: Place, value: ast.AST, around: Sequence[ast.AST], depth: int
) -> bool | None:
    """True where a backward pass starts from a value or its sum, and nothing else needs its graph.

    False where something else may; None where nothing does at all.
    """
    waiting = [*around]
    while waiting:
        parent = waiting.pop()
        if isinstance(parent, ast.Assign):
            return _is_bound_for_backward(place, parent, value, depth)
        outer = waiting.pop() if isinstance(parent, ast.Attribute) and waiting else parent
        if _needs_no_graph(parent):
            return None
        if isinstance(outer, ast.Call) and outer.func is parent and called_name(outer) == _LEARNING:
            return not outer.args
        if not _is_linear(parent, outer, value):
            return False
        value = outer
    return False


def _needs_no_graph(parent: ast.AST) -> bool:
    """Whether what is around a value takes it as a number, or cuts it off from its graph."""
    if isinstance(parent, ast.Attribute):
        return parent.attr in CUTTING
    is_builtin = called_name(parent) in NUMBER_FUNCTIONS | TEXT_FUNCTIONS
    return isinstance(parent, ast.FormattedValue) or is_builtin


def _is_linear(parent: ast.AST, outer: ast.AST, value: ast.AST) -> bool:
    """Whether an expression around a value adds it up, scales it, or joins it with others."""
    if isinstance(parent, ast.BinOp) and isinstance(parent.op, _LINEAR):
        other = parent.left if parent.right is value else parent.right
        if isinstance(parent.op, ast.Mult) and loaded_names(other) & loaded_names(value):
            return False  # a square
        return not (isinstance(parent.op, ast.Div) and parent.right is value)
    if isinstance(parent, ast.Attribute):
        is_method = isinstance(outer, ast.Call) and outer.func is parent
        return is_method and parent.attr in _ADDING
    return isinstance(parent, ast.Call) and _adds_up(parent, value)


def _adds_up(call: ast.Call, value: ast.AST) -> bool:
    """Whether a function is one of a sum, a mean, or of joining, of a value that it is given."""
    name = called_name(call)
    if name == "reduce":
        operation = ast.unparse(call.args[0]) if call.args else ""
        return operation in ("add", "operator.add", "torch.add") and value in call.args[1:2]
    return name in _ADDING | JOINING and value in call.args[:1]


def _is_bound_for_backward(place: Place, assign: ast.Assign, value: ast.AST, depth: int) -> bool:
    """The same of the one name that an assignment binds to a value."""
    target = assign.targets[0]
    if len(assign.targets) != 1 or not isinstance(target, ast.Name) or assign.value is not value:
        return False
    if not depth:
        return False
    own = {id(node) for node in ast.walk(assign)}
    answers = [
        _goes_backward(place, load, around, depth - 1)
        for load, around in reads_of(place.scope, target.id)
        if id(load) not in own and load.lineno > assign.lineno
    ]
    return True in answers and False not in answers
