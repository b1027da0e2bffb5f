"""Containers that the program keeps to a length itself: what fills them also takes, by `len()`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from memprof.source_code.idioms import growing
from memprof.source_code.program import FUNCTIONS, Place, bound_names, called_name
from memprof.source_code.verbs import EMPTYING

__all__ = ["is_kept_to_length"]

_MANY = ("extend", "update")
"""Put in more than one at a time: that one is taken is then not enough."""
_LESS, _MORE = (ast.Lt, ast.LtE), (ast.Gt, ast.GtE)


def is_kept_to_length(place: Place) -> bool:
    """Whether what a statement fills is asked for its length there, and loses items by it.

    ``while len(self.entries) > self.capacity: self.entries.popitem(last=False)``, in the same
    function, or in a method of the same class that it calls; also a statement that runs only below
    a length, and ``rows = rows[-100:]``. False for a container in another one (``rows[key]``):
    of those there may be ever more.
    """
    growth = growing(place)
    if growth is None or "[" in growth.container:
        return False
    name, function = growth.container, place.function
    inside = place.around[place.around.index(function) + 1 :] if function else place.around
    if any(_runs_below_length(node, place, name) for node in inside):
        return True
    if any(_trims_whole(node, name) for scope in _scopes(place) for node in ast.walk(scope)):
        return True
    if any(called_name(call) in _MANY for call in ast.walk(place.statement)):
        return False
    # one by one, and as often as it is filled
    beside = [place.loop] if place.loop is not None else _scopes(place)
    return any(_trims_one(node, name) for scope in beside for node in ast.walk(scope))


def _scopes(place: Place) -> Iterator[ast.AST]:
    """The function around a place, else the file; and methods of its class that it calls."""
    function, class_ = place.scope, place.class_
    yield function
    called = {
        called_name(node)
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "self"
    }
    for node in class_.body if class_ is not None else ():
        if isinstance(node, FUNCTIONS) and node is not function and node.name in called:
            yield node


def _runs_below_length(node: ast.AST, place: Place, name: str) -> bool:
    """Whether a place is in the branch of an ``if`` for a container that is not full."""
    if not isinstance(node, ast.If):
        return False
    if any(inner is place.statement for one in node.orelse for inner in ast.walk(one)):
        return _asks_length(node.test, name)
    return _asks_length(node.test, name, below=True)


def _trims_one(node: ast.AST, name: str) -> bool:
    """Whether a statement takes something from a container for its length."""
    if not isinstance(node, ast.If) or not _asks_length(node.test, name):
        return False
    return any(_takes(inner, name) for one in node.body for inner in ast.walk(one))


def _trims_whole(node: ast.AST, name: str) -> bool:
    """Whether it takes all that is too much, or cuts the container to a length."""
    if isinstance(node, (ast.If, ast.While)) and _asks_length(node.test, name):
        takes = _takes if isinstance(node, ast.While) else _empties
        return any(takes(inner, name) for one in node.body for inner in ast.walk(one))
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
        is_same = ast.unparse(node.value.value) == name
        targets = [ast.unparse(target) for target in bound_names(node)]
        return is_same and isinstance(node.value.slice, ast.Slice) and name in targets
    return isinstance(node, ast.Delete) and any(
        isinstance(one, ast.Subscript)
        and isinstance(one.slice, ast.Slice)
        and ast.unparse(one.value) == name
        for one in node.targets
    )


def _takes(node: ast.AST, name: str) -> bool:
    if isinstance(node, ast.Delete):
        parts = [one.value for one in node.targets if isinstance(one, ast.Subscript)]
    elif isinstance(node, ast.Call) and called_name(node) in EMPTYING:
        parts = [node.func.value] if isinstance(node.func, ast.Attribute) else []
    elif isinstance(node, ast.Assign):
        return name in {ast.unparse(target) for target in bound_names(node)}
    else:
        return False
    return any(ast.unparse(part) == name for part in parts)


def _empties(node: ast.AST, name: str) -> bool:
    is_call = isinstance(node, ast.Call) and called_name(node) == "clear"
    return (is_call or isinstance(node, ast.Assign)) and _takes(node, name)


def _asks_length(test: ast.expr, name: str, *, below: bool = False) -> bool:
    """Whether a condition compares a container's length with something other than nothing.

    With ``below``: whether it holds for a shorter container only.
    """
    for node in ast.walk(test):
        if not isinstance(node, ast.Compare) or len(node.comparators) != 1:
            continue
        left, right = node.left, node.comparators[0]
        for side, other, shorter in ((left, right, _LESS), (right, left, _MORE)):
            is_nothing = isinstance(other, ast.Constant) and not other.value
            if _is_length(side, name) and not is_nothing:
                return not below or isinstance(node.ops[0], shorter)
    return False


def _is_length(node: ast.expr, name: str) -> bool:
    is_call = isinstance(node, ast.Call) and called_name(node) == "len" and len(node.args) == 1
    return is_call and ast.unparse(node.args[0]) == name  # type: ignore[attr-defined]
