"""Lists that are made whole, and gone through once: their items could be made one by one."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memprof.source_code.program import LOOPS, Place, bound_names, called_name, calls_in
from memprof.source_code.scopes import nodes_around, parameters, reads_of
from memprof.source_code.values import values_of

__all__ = ["ListAhead", "collected_by", "list_ahead", "makes_at_once"]

_GOING_THROUGH = ("enumerate", "iter", "tqdm", "trange", "zip")
_ENTRIES = ("items", "values")
"""Methods by which a loop goes through what a dictionary has."""
_COLLECTING = ("dict", "list", "tuple")
"""Functions that make all of what another makes one by one: ``list(loader)``."""
_KEEPING = ("add", "append", "appendleft", "extend", "insert", "put", "setdefault", "update")
_FILLING = ("append", "extend")
_DEEPEST = 4
"""Functions that hand a list on to one another."""


@dataclass(frozen=True, slots=True, eq=False)
class ListAhead:
    """A list of a function, and the loop that goes through it."""

    function: str
    """The name of the function that makes it; empty where the loop is in the same one."""
    place: Place
    """The statement that fills it."""
    loop: Place
    """The statement that goes through it."""


def list_ahead(places: Sequence[Place]) -> ListAhead | None:
    """The list that one of some calls fills for later, if it is gone through once.

    ``places`` are the statements of a stack, innermost first. The list is a variable of its
    function, which fills it in a loop and returns it, or goes through it itself. Whoever is
    handed it does nothing else with it. None where an item may be kept.
    """
    for at, place in enumerate(places):
        filling, name = _filling(place)
        if filling is None:
            continue
        if isinstance(filling.statement, ast.For):
            if not _keeps_items(filling.statement):
                return ListAhead("", filling, filling)
            continue
        if name:
            loop = _gone_through(place, name, filling, 0)
            if loop is not None:
                return ListAhead("", filling, loop)
        function = place.function
        # a comprehension has a frame of its own, at the same statement
        callers = (one for one in places[at:] if one.statement is not place.statement)
        caller = next(callers, None)
        if function is None or caller is None or not _is_returned(function, name):
            continue
        loop = _loop_over_result(caller, function.name)
        if loop is not None:
            return ListAhead(function.name, filling, loop)
    return None


def _filling(place: Place) -> tuple[Place | None, str]:
    """The statement in whose loop a place lies that fills a list, and the list's name.

    Or that makes it at once, as a comprehension and ``list(loader)`` do. Without a name the
    function returns it, or the statement is the loop that goes through it.
    """
    statement = place.statement
    if isinstance(statement, ast.For) and any(map(_collects, _iterated(statement))):
        return place, ""
    if isinstance(statement, ast.Return) and _collects(statement.value):
        return place, ""
    if isinstance(statement, (ast.Assign, ast.AnnAssign)) and _collects(statement.value):
        target = bound_names(statement)[0]
        return (place, target.id) if isinstance(target, ast.Name) else (None, "")
    loop = place.loop
    if not isinstance(loop, ast.For):
        return None, ""
    for receiver, node in _fillings(loop):
        values = list(values_of(place, receiver.id, node if isinstance(node, ast.stmt) else None))
        at = place.program.place(node)
        if len(values) == 1 and _is_empty(values[0]) and at is not None and at.loop is loop:
            return at, receiver.id
    return None, ""


def _fillings(loop: ast.For) -> Iterator[tuple[ast.Name, ast.AST]]:
    """The variables that a loop fills and where: ``a.append(x)``, ``a += [x]``, ``a[k] = x``."""
    for node in ast.walk(loop):
        filled: ast.expr | None = None
        if isinstance(node, ast.Call) and called_name(node) in _FILLING:
            filled = node.func.value if isinstance(node.func, ast.Attribute) else None
        elif isinstance(node, ast.AugAssign) and isinstance(node.value, (ast.List, ast.Tuple)):
            filled = node.target
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            filled = node.targets[0].value
        if isinstance(filled, ast.Name):
            yield filled, node


def _is_empty(value: ast.expr | None) -> bool:
    """Whether a container has nothing yet: ``[]``, ``list()``, ``{}``, ``dict()``."""
    if isinstance(value, ast.Call):
        return called_name(value) in _COLLECTING and not value.args and not value.keywords
    is_list = isinstance(value, ast.List) and not value.elts
    return is_list or (isinstance(value, ast.Dict) and not value.keys)


def _collects(value: ast.expr | None) -> bool:
    """Whether an expression makes all items of a list or a dictionary that it is."""
    if isinstance(value, (ast.ListComp, ast.DictComp)):
        return True
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Name):
        return False
    return value.func.id in _COLLECTING and len(value.args) == 1 and not value.keywords


def makes_at_once(statement: ast.stmt) -> bool:
    """Whether a statement makes a list, and does not add to one in a loop around it."""
    return _collects(getattr(statement, "value", None))


def collected_by(statement: ast.stmt) -> str:
    """``loader`` of ``batches = list(loader)``; empty for other statements."""
    value = getattr(statement, "value", None)
    if not isinstance(value, ast.Call) or not _collects(value):
        return ""
    return ast.unparse(value.args[0])


def _is_returned(function: ast.AST, name: str) -> bool:
    """Whether all that a function does with its list is to fill it and to return it."""
    if not name:
        return True
    reads = [around for _, around in reads_of(function, name) if not _is_use(around)]
    return len(reads) == 1 and isinstance(reads[0][-1], ast.Return)


def _is_use(around: list[ast.AST]) -> bool:
    """Whether a read only fills a list, or asks how long it is."""
    parent = around[-1]
    is_filled = isinstance(parent, ast.Attribute) and parent.attr in _FILLING
    is_entry = isinstance(parent, ast.Subscript) and isinstance(parent.ctx, ast.Store)
    return is_filled or is_entry or called_name(parent) == "len"


def _gone_through(place: Place, name: str, bound_at: Place | None, depth: int) -> Place | None:
    """The one loop that goes through what a variable has, if nothing else reads it."""
    scope = place.scope
    reads = [(load, a) for load, a in reads_of(scope, name) if not _is_use(a)]
    if len(reads) != 1 or depth >= _DEEPEST:
        return None
    load, around = reads[0]
    statement = next((node for node in around[::-1] if isinstance(node, ast.stmt)), None)
    at = place.program.place(statement) if statement is not None else None
    if at is None or _is_repeated(at, bound_at):
        return None
    if isinstance(statement, ast.For):
        is_iterated = any(one is load for one in _iterated(statement))
        return at if is_iterated and not _keeps_items(statement) else None
    parent = around[-2] if isinstance(around[-1], ast.keyword) else around[-1]
    return _handed_on(at, parent, load, depth) if isinstance(parent, ast.Call) else None


def _is_repeated(at: Place, bound_at: Place | None) -> bool:
    """Whether a statement runs more often than the one that fills or binds the list."""
    outside = [node for node in at.around if isinstance(node, LOOPS)]
    bound = bound_at.around if bound_at is not None else ()
    return any(all(node is not one for one in bound) for node in outside)


def _iterated(loop: ast.For) -> Iterator[ast.expr]:
    """What a loop goes through item by item: ``a`` and ``b`` of ``enumerate(zip(a, b))``."""
    waiting = [loop.iter]
    while waiting:
        one = waiting.pop()
        if not isinstance(one, ast.Call) or _collects(one):
            yield one
        elif called_name(one) in _GOING_THROUGH:
            waiting += one.args
        elif called_name(one) in _ENTRIES and isinstance(one.func, ast.Attribute):
            waiting.append(one.func.value)


def _keeps_items(loop: ast.For) -> bool:
    """Whether the loop's body may keep an item: hands it to a container, or to an attribute."""
    names = {node.id for node in bound_names(loop) if isinstance(node, ast.Name)}

    def is_item(value: ast.AST) -> bool:
        return isinstance(value, ast.Name) and value.id in names

    nodes = [node for statement in loop.body for node in ast.walk(statement)]
    handed = [n for n in nodes if isinstance(n, ast.Call) and called_name(n) in _KEEPING]
    bound = [n for n in nodes if isinstance(n, ast.Assign) and is_item(n.value)]
    return any(is_item(one) for call in handed for one in call.args) or any(
        not isinstance(target, ast.Name) for one in bound for target in one.targets
    )


def _handed_on(at: Place, call: ast.Call, given: ast.expr, depth: int) -> Place | None:
    """The same of the function of the program that is handed a list, by position or by name."""
    functions = at.program.functions(called_name(call)) if called_name(call) else []
    inside = at.program.place(functions[0].body[-1]) if len(functions) == 1 else None
    if inside is None or any(isinstance(one, ast.Starred) for one in call.args):
        return None
    names = list(parameters(functions[0]))[int(inside.class_ is not None) :]
    positions = [names[at] for at, one in enumerate(call.args) if one is given and at < len(names)]
    keywords = [one.arg or "" for one in call.keywords if one.value is given]
    into = [*positions, *(one for one in keywords if one in names)]
    return _gone_through(inside, into[0], None, depth + 1) if len(into) == 1 else None


def _loop_over_result(place: Place, function: str) -> Place | None:
    """The loop through what a statement has a function make: in it, or by the name it binds.

    Or in another function that is handed the result at once: ``fit(net, views(images))``.
    """
    statement = place.statement
    calls = calls_in(statement, function) or calls_in(statement)
    if len(calls) != 1:
        return None
    if isinstance(statement, ast.For):
        is_iterated = any(node is calls[0] for node in ast.walk(statement.iter))
        return place if is_iterated and not _keeps_items(statement) else None
    around = nodes_around(statement, calls[0])
    outer = around[-2] if isinstance(around[-1], ast.keyword) else around[-1]
    if isinstance(outer, ast.Call):
        return _handed_on(place, outer, calls[0], 0)
    if not isinstance(statement, ast.Assign) or statement.value is not calls[0]:
        return None
    target = statement.targets[0]
    is_name = len(statement.targets) == 1 and isinstance(target, ast.Name)
    return _gone_through(place, target.id, place, 0) if is_name else None  # type: ignore[attr-defined]
