"""Variables whose values nothing keeps: they are only handed to what computes."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from memprof.source_code.program import Place, bound_names, called_name, loaded_names
from memprof.source_code.scopes import reads_of_binding
from memprof.source_code.verbs import FILLING

__all__ = ["is_let_go", "is_replaced_in_loop"]


def is_let_go(place: Place) -> bool:
    """Whether a statement binds a variable that is only an operand, or handed to a method.

    ``x = F.relu(self.first(x))``, and then ``self.second(x)``. Not what is returned as it is, put
    into a container or an attribute, or given to a function that may do so.
    """
    name = _name_bound(place)
    if not name or place.function is None:
        return False
    reads = [around for _, around in reads_of_binding(place.scope, name, place.line)]
    return bool(reads) and all(map(_computes, reads))


def is_replaced_in_loop(place: Place) -> bool:
    """Whether a loop goes on from what it made: ``x = F.relu(layer(x))``. All but its last is gone.

    If nothing else reads it in between.
    """
    name = _name_bound(place)
    if not name or place.loop is None or name not in loaded_names(place.statement):
        return False
    within = [node for node in ast.walk(place.loop) if isinstance(node, ast.stmt)]
    readers = [one for one in within if name in loaded_names(one)]
    inner = [one for one in readers if one is not place.loop and one is not place.statement]
    return not inner


def _name_bound(place: Place) -> str:
    targets = bound_names(place.statement) if isinstance(place.statement, ast.Assign) else []
    if len(targets) != 1 or not isinstance(targets[0], ast.Name):
        return ""
    return targets[0].id


def _computes(around: Sequence[ast.AST]) -> bool:
    """Whether what stands around a read makes something new of it, by all that is known."""
    nodes = list(around)
    if isinstance(nodes[-1], ast.keyword):
        nodes.pop()
    if isinstance(nodes[-1], (ast.List, ast.Tuple)) and isinstance(nodes[-2], ast.Call):
        nodes.pop()  # ``torch.cat([x, y])``
    if isinstance(nodes[-1], ast.Call):
        is_method = isinstance(nodes[-1].func, ast.Attribute)
        return is_method and called_name(nodes[-1]) not in FILLING
    return isinstance(nodes[-1], (ast.BinOp, ast.UnaryOp, ast.Compare))
