"""Jacobians of a whole batch of which a function reads each sample's own part alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from memprof.source_code.program import Place, assigned, called_name, calls_in
from memprof.source_code.values import returned_by

__all__ = ["DiagonalRead", "diagonal_read"]

_OF_FUNCTION = ("jacobian",)
"""Functions that are given the function and its input."""
_MAKING = ("jacfwd", "jacrev")
"""Functions that make another one of it, which is given the input."""
_DEEPEST = 4
"""Functions that return what one another return, until they are given up."""
_TURNING = frozenset(("T", "mT", "movedim", "permute", "swapaxes", "t", "transpose"))
_FIRST_TWO = {"dim1": "0", "dim2": "1"}
_FIRST_OF_INPUT = 2
"""Dimensions of a result of each sample before those of the input: ``(samples, values, …)``."""


@dataclass(frozen=True, slots=True)
class DiagonalRead:
    """How the part of each sample by itself is read."""

    text: str
    """As it is written."""
    of_numbers: bool
    """The function gives a number for each sample: the sum of these has the same derivatives."""


def diagonal_read(place: Place) -> DiagonalRead | None:
    """How the function around a statement reads the Jacobian that this makes; None where not so.

    ``J.diagonal(dim1=0, dim2=2)``, ``torch.einsum("bibj->bij", J)``, ``J[n, :, n]``: of all pairs
    of samples it is the one with itself. None too where it is read in any other way besides.
    """
    name = _bound_to_jacobian(place)
    if name is None:
        return None
    making = [call for call in calls_in(place.statement) if _is_jacobian(place, call)]
    scope = list(ast.walk(place.scope))
    reads = [
        node
        for node in scope
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
    ]
    wanted = {id(node) for node in reads} if name else {id(call) for call in making}
    diagonal = [
        (node, read)
        for node in scope
        if isinstance(node, (ast.Call, ast.Subscript))
        for read in _read_diagonally(node)
        if id(read) in wanted
    ]
    # What is bound to the same name anew is the part itself, which the function goes on with.
    rebound = min((node.lineno for node, _ in diagonal if _binds(place, node, name)), default=0)
    others = [
        read
        for read in reads
        if not any(read is one for _, one in diagonal) and not 0 < rebound < read.lineno
    ]
    if not diagonal or others:
        return None
    node = diagonal[0][0]
    of_numbers = _is_of_numbers(node)
    if of_numbers and called_name(node) == "diagonal" and not _is_turned_round(scope, node):
        return None  # of one sample's own matrix, perhaps, whose values may depend on one another
    return DiagonalRead(ast.unparse(node), of_numbers)


def _is_turned_round(scope: list[ast.AST], read: ast.AST) -> bool:
    """Whether dimensions of what is read are exchanged: a diagonal has its own as the last one.

    Only what has two is: a number of each sample by all samples' inputs.
    """
    return any(
        isinstance(node, ast.Attribute) and node.value is read and node.attr in _TURNING
        for node in scope
    )


def _is_of_numbers(read: ast.AST) -> bool:
    """Whether samples are the first two dimensions: ``dim1=0, dim2=1``, or ``"iij->ij"``."""
    if called_name(read) == "diagonal" and isinstance(read, ast.Call):
        return {one.arg: ast.unparse(one.value) for one in read.keywords} == _FIRST_TWO
    if called_name(read) == "einsum" and isinstance(read, ast.Call):
        equation = ast.unparse(read.args[0]).strip("'\"").strip()
        return len(equation) > _FIRST_OF_INPUT and equation[0] == equation[1]
    return False


def _bound_to_jacobian(place: Place) -> str | None:
    """The variable that a statement binds to a Jacobian; empty where it reads it at once."""
    calls = [call for call in calls_in(place.statement) if _is_jacobian(place, call)]
    if len(calls) != 1:
        return None
    for target, value in assigned(place.statement):
        if value is calls[0]:
            return target.id if isinstance(target, ast.Name) else None
    return ""


def _is_jacobian(place: Place, call: ast.Call, depth: int = _DEEPEST) -> bool:
    """Whether a call returns a Jacobian, or is of a function of the file that returns one."""
    if called_name(call) in _OF_FUNCTION:
        return True
    if isinstance(call.func, ast.Call) and called_name(call.func) in _MAKING:
        return True
    return any(
        isinstance(value, ast.Call) and _is_jacobian(at, value, depth - 1)
        for at, value in (returned_by(place, call) if depth else ())
    )


def _binds(place: Place, node: ast.AST, name: str) -> bool:
    """Whether a statement binds a name to what it computes of a node."""
    return bool(name) and any(
        isinstance(target, ast.Name)
        and target.id == name
        and value is not None
        and any(one is node for one in ast.walk(value))
        for statement in ast.walk(place.scope)
        for target, value in assigned(statement)
    )


def _read_diagonally(node: ast.Call | ast.Subscript) -> Iterator[ast.expr]:
    """What a node takes the diagonal of the first dimension and a later one of."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
        keys = dict(enumerate(map(ast.unparse, node.slice.elts)))
        turned, order = _turned(node.value)
        if order:
            keys = {order[at]: key for at, key in keys.items() if at < len(order)}
        whole = isinstance(node.slice.elts[0], (ast.Slice, ast.Constant))
        if not whole and any(keys.get(0) == keys[at] for at in keys if at >= _FIRST_OF_INPUT):
            yield turned
    if not isinstance(node, ast.Call):
        return
    if called_name(node) == "diagonal":
        given = {one.arg: ast.unparse(one.value) for one in node.keywords}
        values = list(map(ast.unparse, node.args))
        of_method = not any(isinstance(one, (ast.Name, ast.Call)) for one in node.args)
        positions = values if of_method else values[1:]
        of_numbers = given == _FIRST_TWO
        ends = [*positions[1:3], *(given[one] for one in ("dim1", "dim2") if one in given)]
        later = any(one.isdigit() and int(one) >= _FIRST_OF_INPUT for one in ends)
        if "0" in ends and (of_numbers or later):
            if of_method and isinstance(node.func, ast.Attribute):
                yield node.func.value
            elif node.args:
                yield node.args[0]
    if called_name(node) == "einsum" and len(node.args) > 1:
        equation = node.args[0].value if isinstance(node.args[0], ast.Constant) else ""
        first = str(equation).split("->")[0].split(",")[0].strip()
        # ``iij->ij`` is of a number of each sample by all samples' inputs.
        of_numbers = len(first) > _FIRST_OF_INPUT and first[0] == first[1]
        if first and (of_numbers or first[0] in first[_FIRST_OF_INPUT:]):
            yield node.args[1]


def _turned(value: ast.expr) -> tuple[ast.expr, list[int]]:
    """What a value is a permutation of, and which dimension of that each of its own is.

    No order where nothing is turned.
    """
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return value, []
    given = value.args
    if len(given) == 1 and isinstance(given[0], (ast.List, ast.Tuple)):
        given = given[0].elts
    numbers = [one.value for one in given if isinstance(one, ast.Constant)]
    order = [one for one in numbers if isinstance(one, int)]
    if len(order) != len(given):
        return value, []
    if called_name(value) == "permute":
        return value.func.value, order
    if called_name(value) in ("transpose", "swapaxes") and min(order, default=-1) >= 0:
        low, high = min(order), max(order)
        dims = list(range(max(high + 1, _FIRST_OF_INPUT + 1)))
        dims[low], dims[high] = high, low
        return value.func.value, dims
    return value, []
