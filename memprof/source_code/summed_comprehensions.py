"""Losses that a comprehension computes, and one backward pass from nothing but their sum."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TypeGuard

from memprof.source_code.idioms import is_partly_cut
from memprof.source_code.learned_sums import is_learned_from
from memprof.source_code.program import Place, Program, called_name, calls_in, root_name
from memprof.source_code.scopes import nodes_around

__all__ = ["goes_backward_from_sum"]

_OF_TORCH = frozenset(("F", "functional", "nn", "torch"))
"""Names that torch's modules are imported by."""


def _computes_losses(node: ast.AST) -> TypeGuard[ast.expr]:
    """Whether a node is a comprehension, or a ``map``, of values that have a graph."""
    if isinstance(node, ast.DictComp):
        return not is_partly_cut(node.value)
    if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
        return not is_partly_cut(node.elt)
    is_map = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    return is_map and called_name(node) == "map" and not is_partly_cut(node)


def _calls_more_than_items(made: ast.expr) -> bool:
    """Whether each turn calls something besides methods of its item and functions of torch.

    What it goes over is computed before the first turn: all passes, where it is their results.
    """
    if isinstance(made, ast.Call):
        function = made.args[0] if made.args else made.func
        return not isinstance(function, ast.Attribute) or root_name(function) not in _OF_TORCH
    if not isinstance(made, (ast.DictComp, ast.ListComp, ast.GeneratorExp)):
        return False
    computed = made.value if isinstance(made, ast.DictComp) else made.elt
    targets = {
        node.id
        for generator in made.generators
        for node in ast.walk(generator.target)
        if isinstance(node, ast.Name)
    }
    return any(
        isinstance(call.func, ast.Name) or root_name(call.func) not in targets | _OF_TORCH
        for call in calls_in(computed)
    )


def goes_backward_from_sum(place: Place, programs: Sequence[Program]) -> bool:
    """Whether a backward pass starts from a sum or mean of what a comprehension here computes.

    ``torch.stack([loss_of(x) for x in xs]).mean().backward()``, also by way of variables. What else
    is done with the values is done without their graph: so each could have a pass of its own. A
    ``map`` is one as well.
    """
    comprehensions = [node for node in ast.walk(place.statement) if _computes_losses(node)]
    if len(comprehensions) != 1 or hasattr(place.statement, "body"):
        return False
    (made,) = comprehensions
    if not _calls_more_than_items(made):
        return False
    around = nodes_around(place.statement, made)
    return is_learned_from(place, made, around, programs) is True
