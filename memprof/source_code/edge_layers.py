"""Layers on graphs that compute for each edge what a node's features tell by themselves."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from memprof.source_code.program import FUNCTIONS, Place, assigned, called_name, calls_in
from memprof.source_code.scopes import parameters, reads_of

__all__ = ["LinearOfEdges", "linear_of_edges", "linear_of_gathered"]

_MESSAGE = "message"
"""The method of PyG's `MessagePassing` that makes a message of what it gathers for each edge."""
_ENDS = ("_i", "_j")
"""What ends the name of a parameter that is given features of nodes, one row for each edge."""
_LINEAR = "Linear"
_PARAMETER = "Parameter"
_MULTIPLYING = ("matmul", "mm", "mv", "linear")
_JOINING = ("cat", "concat", "concatenate")
_SELECTING = "index_select"


@dataclass(frozen=True, slots=True, eq=False)
class LinearOfEdges:
    """A linear layer that all gathered features of one kind go into."""

    layer: str
    """As written: ``self.lin``."""
    features: str
    """What is gathered: ``x``, an argument of `propagate` or a variable."""
    place: Place
    """The statement that calls it."""
    parts: int = 1
    """How many tensors are joined to what it is given."""
    reads_parts: bool = False
    """Something else reads what is joined as well."""
    is_product: bool = False
    """It is no layer, but a parameter that a statement multiplies by."""


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
            if (
                at is not None
                and len(calls[0].args) == 1
                and _is_bound_to(class_, calls[0].func, _LINEAR)
            ):
                return LinearOfEdges(ast.unparse(calls[0].func), name[:-2], at)
    return None


def linear_of_gathered(place: Place) -> LinearOfEdges | None:
    """``self.lin(x[src])`` or ``self.lin(torch.cat([x[src], x[dst]], -1))``, as a statement has it.

    Or as one gathers, or joins, what a variable then hands to the layer. In a `message` ``x_j`` is
    gathered. ``torch.cat([x[src], x[dst]], -1) @ self.att`` is linear, too. None where anything
    else reads what the layer is given.
    """
    for node in ast.walk(place.function) if place.function is not None else ():
        mapped = _linear_map(place.class_, node)
        at = place.program.place(node) if mapped is not None else None
        if mapped is None or at is None:
            continue
        (by, given), of_layer = mapped, _Given(place)
        if not of_layer.follow(given) or not of_layer.gathered:
            continue
        makes_it = [] if isinstance(given, ast.Name) else [at.statement]
        if place.statement in [*makes_it, *of_layer.statements]:
            return LinearOfEdges(
                ast.unparse(by),
                ast.unparse(of_layer.gathered[0]),
                at,
                of_layer.parts,
                of_layer.is_shared,
                is_product=not (isinstance(node, ast.Call) and node.func is by),
            )
    return None


def _linear_map(class_: ast.ClassDef | None, node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """The layer or parameter of an expression that maps rows one by one, and what it is given."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        given, by = node.left, node.right
    elif not isinstance(node, ast.Call) or node.keywords or not node.args:
        return None
    elif len(node.args) == 1 and _is_bound_to(class_, node.func, _LINEAR):
        return node.func, node.args[0]
    elif called_name(node) not in _MULTIPLYING:
        return None
    elif len(node.args) == 1 and isinstance(node.func, ast.Attribute):
        given, by = node.func.value, node.args[0]
    elif len(node.args) > 1:  # of `F.linear` a bias follows
        given, by = node.args[0], node.args[1]
    else:
        return None
    return (by, given) if _is_bound_to(class_, by, _PARAMETER) else None


class _Given:
    """What a call is given, followed through variables that nothing else reads."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.gathered: list[ast.expr] = []
        """Of what rows are taken by an index."""
        self.statements: list[ast.stmt] = []
        self.parts = 1
        self.is_shared = False

    def follow(self, value: ast.expr) -> bool:
        """Whether nothing else reads it, and it is gathered, or joined of what is in part."""
        if isinstance(value, ast.Name):
            return self._follow_variable(value.id)
        if called_name(value) in _JOINING and isinstance(value, ast.Call) and value.args:
            joined = value.args[0]
            if not isinstance(joined, (ast.List, ast.Tuple)):
                return False
            self.parts = len(joined.elts)
            are_gathered = [self.follow(one) for one in joined.elts]  # each of them, to the last
            return any(are_gathered)
        rows_of = _rows_of(value)
        if rows_of is not None:
            self.gathered.append(rows_of)
        return rows_of is not None

    def _follow_variable(self, name: str) -> bool:
        function = self._place.function
        if function is None:
            return False
        is_shared = len(list(reads_of(function, name))) != 1
        if is_shared and self.parts == 1:
            return False  # what is joined is another tensor: its parts may be read elsewhere
        self.is_shared |= is_shared
        if name in parameters(function):
            is_gathered = function.name == _MESSAGE and name.endswith(_ENDS)
            if is_gathered:
                self.gathered.append(ast.Name(name[:-2]))
            return is_gathered
        bindings = [
            (node, value)
            for node in ast.walk(function)
            for target, value in assigned(node)
            if isinstance(target, ast.Name) and target.id == name
        ]
        if len(bindings) != 1:
            return False
        (binding, value), *_ = bindings
        if value is None or not isinstance(binding, ast.stmt):
            return False
        if not is_shared:
            self.statements.append(binding)
        return self.follow(value)


def _rows_of(value: ast.expr) -> ast.expr | None:
    """``x`` in ``x[src]`` and ``x.index_select(0, src)``; None for slices, and numbers of rows."""
    if isinstance(value, ast.Subscript):
        is_index = isinstance(value.slice, (ast.Name, ast.Attribute, ast.Subscript))
        return value.value if is_index else None
    if called_name(value) != _SELECTING or not isinstance(value, ast.Call) or not value.args:
        return None
    of, *rest = value.args
    if not isinstance(value.func, ast.Attribute):
        return None
    if ast.unparse(value.func.value) != "torch":
        of, rest = value.func.value, value.args
    is_of_rows = bool(rest) and isinstance(rest[0], ast.Constant) and rest[0].value == 0
    return of if is_of_rows else None


def _is_bound_to(class_: ast.ClassDef | None, attribute: ast.expr, kind: str) -> bool:
    """Whether a class binds an attribute to what it makes of one kind, and to nothing else."""
    values = [
        value
        for node in (ast.walk(class_) if class_ is not None else ())
        for target, value in assigned(node)
        if ast.unparse(target) == ast.unparse(attribute)
    ]
    return bool(values) and all(
        isinstance(one, ast.Call) and called_name(one) == kind for one in values
    )
