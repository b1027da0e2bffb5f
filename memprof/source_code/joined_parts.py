"""Whether what a loop collects in a list is joined into one tensor after the loop."""

from __future__ import annotations

import ast

from memprof.source_code.idioms import growing
from memprof.source_code.program import LOOPS, Place, bound_names, calls_in

__all__ = ["is_joined_afterwards"]

_JOINS = ("cat", "concat", "concatenate", "hstack", "stack", "vstack")


def is_joined_afterwards(place: Place) -> bool:
    """Whether the list that a statement fills is made and joined around the statement's loops.

    ``parts = []; for …: parts.append(x); return torch.cat(parts)``, in one function.
    """
    filling, function = growing(place), place.function
    if filling is None or function is None or not filling.container.isidentifier():
        return False
    name = filling.container
    creations = [
        statement
        for statement in ast.walk(function)
        if isinstance(statement, (ast.Assign, ast.AnnAssign))
        and any(name == one for target in bound_names(statement) for one in _names(target))
    ]
    inside = place.around[place.around.index(function) + 1 :]
    loops = [node for node in inside if isinstance(node, LOOPS)]
    filled_by = [loop for loop in loops if not any(one in ast.walk(loop) for one in creations)]
    if not creations or not filled_by:
        return False
    end = filled_by[0].end_lineno or 0
    within = next((loop for loop in reversed(loops) if loop not in filled_by), function)
    return any(
        call.lineno > end
        and call.args
        and isinstance(call.args[0], ast.Name)
        and call.args[0].id == name
        for call in calls_in(within, *_JOINS)
    )


def _names(target: ast.expr) -> list[str]:
    return [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]
