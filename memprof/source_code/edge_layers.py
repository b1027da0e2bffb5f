"""Layers on graphs that compute for each edge what a node's features tell by themselves."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from memprof.source_code.program import FUNCTIONS, Place, assigned, called_name, calls_in
from memprof.source_code.scopes import parameters, reads_of

__all__ = ["LinearOfEdges", "linear_of_edges"]

_MESSAGE = "message"
"""The method of PyG's `MessagePassing` that makes a message of what it gathers for each edge."""
_ENDS = ("_i", "_j")
"""What ends the name of a parameter that is given features of nodes, one row for each edge."""
_LINEAR = "Linear"


@dataclass(frozen=True, slots=True, eq=False)
class LinearOfEdges:
    """A linear layer that all gathered features of one kind go into."""

    layer: str
    """As written: ``self.lin``."""
    features: str
    """The argument of `propagate` that is gathered: ``x``."""
    place: Place
    """The statement that calls it."""


def linear_of_edges(place: Place) -> LinearOfEdges | None:
    """``self.lin(x_j)`` in the `message` of the class that calls ``self.propagate(…, x=x)``.

    None where `message` reads what is gathered at another place as well, or where the layer is
    bound to anything but an ``nn.Linear``.
    """
    class_ = place.class_
    gathered = [
        given.arg
        for call in calls_in(place.statement, "propagate")
        if ast.unparse(call.func) == "self.propagate"
        for given in call.keywords
        if given.arg is not None
    ]
    for method in class_.body if class_ is not None else ():
        if not isinstance(method, FUNCTIONS) or method.name != _MESSAGE:
            continue
        for name in parameters(method):
            reads = [node for node, _ in reads_of(method, name)]
            calls = [
                c for c in calls_in(method) if any(one is node for node in reads for one in c.args)
            ]
            if not name.endswith(_ENDS) or name[:-2] not in gathered or len(reads) != 1:
                continue
            at = place.program.place(calls[0]) if len(calls) == 1 else None
            if at is not None and len(calls[0].args) == 1 and _is_linear(class_, calls[0].func):
                return LinearOfEdges(ast.unparse(calls[0].func), name[:-2], at)
    return None


def _is_linear(class_: ast.ClassDef | None, layer: ast.expr) -> bool:
    values = [
        value
        for node in (ast.walk(class_) if class_ is not None else ())
        for target, value in assigned(node)
        if ast.unparse(target) == ast.unparse(layer)
    ]
    return bool(values) and all(
        isinstance(one, ast.Call) and called_name(one) == _LINEAR for one in values
    )
