"""Whether a function reads a variable again, and whether anything else holds its value."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from memprof.source_code.dataflow import flow_of
from memprof.source_code.program import FUNCTIONS, LOOPS, Place, Program, called_name
from memprof.source_code.scopes import LOOPING, reads_of
from memprof.source_code.values import values_of
from memprof.source_code.verbs import CONTAINERS, FILLING, SAME_VALUES, VIEWING

__all__ = ["deleted_before", "handed_to", "is_its_only_holder", "last_read_before", "reads_again"]

_INNER = (*FUNCTIONS, ast.Lambda, ast.ClassDef)
_SHARING = SAME_VALUES | VIEWING | {"data", "detach", "mT", "numpy", "reshape", "T"}
"""Methods and attributes whose result may be in the same memory."""
_SHARING_FUNCTIONS = frozenset(("as_tensor", "asarray", "from_numpy", "partial", "submit"))
"""Functions whose result may be in the memory of an argument, or hold the argument."""


def reads_again(place: Place, name: str, line: int, key: object = None) -> bool:
    """Whether a variable that ``place`` binds is read once its function is at ``line`` or later.

    In a loop around ``line`` the next pass counts as later. A function or a class inside may run
    at any time, and so may another function where the name is the file's. Of a dictionary's entry
    of a ``key``, reads of its other entries are none.
    """
    around_line = place.program.at(line)
    if around_line is None:
        return True
    own = around_line.around
    loops = [
        node
        for at, node in enumerate(own)
        if isinstance(node, LOOPS) and not any(isinstance(one, FUNCTIONS) for one in own[at + 1 :])
    ]
    if isinstance(around_line.statement, LOOPS):
        loops.append(around_line.statement)
    for load, around in reads_of(place.scope, name):
        if key is not None and _reads_other(load, around, key):
            continue
        if load.lineno >= line or any(isinstance(one, _INNER) for one in around[1:]):
            return True
        for loop in loops:
            if not _covers(loop, load.lineno) or _is_counted_once(loop, [*around, load]):
                continue
            if not _covers(loop, place.line) or load.lineno <= place.line:
                return True
    return False


def last_read_before(place: Place, name: str, line: int, key: object = None) -> int:
    """The last line before ``line`` on which a variable is read; else that on which it is bound.

    Of a dictionary's entry of a ``key``, reads of its other entries are none.
    """
    lines = [
        load.end_lineno or load.lineno
        for load, around in reads_of(place.scope, name)
        if load.lineno < line and not (key is not None and _reads_other(load, around, key))
    ]
    return max([place.statement.end_lineno or place.line, *lines])


def deleted_before(place: Place, name: str, line: int) -> int:
    """The last line from ``place`` on and before ``line`` with a ``del`` of a variable; 0: none."""
    lines = [
        node.lineno
        for node in ast.walk(place.scope)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del) and node.id == name
    ]
    return max((one for one in lines if place.line < one < line), default=0)


def handed_to(place: Place, name: str, line: int) -> ast.Call | None:
    """The call by which an object that the program made was handed a variable before ``line``.

    Its method returns what is bound to the name again (``net = engine.prepare(net)``), or fills
    what it is called of (``hub.register(net)``). None that a module's function is handed.
    """
    again, filling = [], []
    for load, around in reads_of(place.scope, name):
        call = around[-1]
        if not isinstance(call, ast.Call) or load not in call.args or call.lineno >= line:
            continue
        if not isinstance(call.func, ast.Attribute) or not _is_made(place, call.func.value):
            continue
        bound = [
            one.id
            for node in around
            if isinstance(node, ast.Assign) and node.value is call
            for target in node.targets
            for one in ast.walk(target)
            if isinstance(one, ast.Name)
        ]
        if name in bound:
            again.append(call)
        elif called_name(call) in FILLING:
            filling.append(call)
    return next(iter([*again, *filling]), None)


def _is_made(place: Place, value: ast.expr) -> bool:
    """Whether a variable is bound to what a call returns, and to nothing else: no module is."""
    values = list(values_of(place, value.id)) if isinstance(value, ast.Name) else []
    return bool(values) and all(isinstance(one, ast.Call) for one in values)


def _reads_other(load: ast.expr, around: list[ast.AST], key: object) -> bool:
    """Whether a read takes another entry of a dictionary: ``stages["second"]``."""
    part = around[-1]
    if not isinstance(part, ast.Subscript) or part.value is not load:
        return False
    return isinstance(part.slice, ast.Constant) and part.slice.value != key


def is_its_only_holder(programs: Sequence[Program], place: Place, name: str) -> bool:
    """Whether nothing else that is known of the program holds what a variable is bound to.

    Where it goes into an attribute, a container or an object, or a view of it has a name, it does.
    """
    if any(_is_shared(around) for _, around in reads_of(place.scope, name)):
        return False
    flow = flow_of(programs, place, name, through=False)
    return not flow.is_lost and not flow.is_held_beside(place.scope, name)


def _is_shared(parents: list[ast.AST]) -> bool:
    """Whether a read of a name hands its memory to another one: a view, an object, a container."""
    inner = parents[-1]
    at = len(parents) - 1
    while isinstance(inner, (ast.Subscript, ast.Starred)) and at > 0:
        at -= 1
        inner = parents[at]
    if isinstance(inner, ast.Attribute):
        return inner.attr in _SHARING
    if isinstance(inner, ast.keyword):
        at -= 1
        inner = parents[at]
    if isinstance(inner, ast.Call):
        called = called_name(inner)
        is_class = called[:1].isupper() or called in CONTAINERS
        return is_class or not called or called in FILLING or called in _SHARING_FUNCTIONS
    if isinstance(inner, LOOPING):
        return True
    return not isinstance(inner, (ast.BinOp, ast.Compare, ast.UnaryOp, ast.FormattedValue))


def _is_counted_once(loop: ast.stmt, path: Sequence[ast.AST]) -> bool:
    """Whether what lies at the end of a path is only read for the numbers that a loop counts."""
    if not isinstance(loop, (ast.For, ast.AsyncFor)) or called_name(loop.iter) != "range":
        return False
    return any(one is loop.iter for one in path)


def _covers(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)
