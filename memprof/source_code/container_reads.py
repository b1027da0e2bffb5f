"""What a program reads of a container that it fills: where, and which of its items."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from memprof.source_code.program import FUNCTIONS, Place, Program, called_name, calls_in
from memprof.source_code.scopes import LOOPING, nodes_around, parameters, reads_of
from memprof.source_code.values import values_of
from memprof.source_code.verbs import FILLING, FILLING_FUNCTIONS, JOINING

__all__ = [
    "ItemsRead",
    "Which",
    "fills",
    "is_asked_for",
    "is_measured",
    "items_read",
    "reads_of_container",
]

_OF_LENGTH = frozenset(("bool", "len"))
_MAKING = frozenset(("setdefault", "clear"))
"""Methods that take nothing out to be read; what ``setdefault`` returns is filled."""

_OF_DICTS = frozenset(("items", "values"))
_FEWEST = frozenset(("nlargest", "nsmallest"))
_EXTREMES = frozenset(("max", "min"))
_OF_BEST = frozenset(("argmax", "argmin", "index", "max", "min"))
"""What computes the place of the best of numbers that are kept beside the items."""
_DRAWING = frozenset(("choice", "choices", "sample"))
"""Functions of `random`, and of numpy's generators, that draw items."""
_DRAWING_PLACES = frozenset(("choice", "choices", "integers", "randint", "randrange", "sample"))
"""Those that draw places, and `torch.randint`."""


class Which(Enum):
    """Which items of a container are read."""

    FIRST = "first"
    NEWEST = "newest"
    BEST = "best"
    """The best one or few, by a key or in their order."""
    DRAWN = "drawn"
    """Some by chance: any of them may be next."""


@dataclass(frozen=True, slots=True, eq=False)
class ItemsRead:
    """The only items of a container that a program reads."""

    which: Which
    texts: tuple[str, ...]
    """As they are read: ``outputs[-1]``, ``sorted(runs)[:3]``."""


def reads_of_container(
    place: Place, name: str, programs: Sequence[Program]
) -> Iterator[tuple[ast.expr, list[ast.AST], Program]]:
    """Every read of what has that name, the nodes around it, and its file."""
    if "." not in name and place.function is not None and _has_own(place.function, name):
        for read, around in reads_of(place.scope, name):
            yield read, around, place.program
        return
    if "." not in name:
        yield from _reads_outside(place, name)
        return
    last = name.rpartition(".")[2]
    files = {id(one.tree): one for one in (place.program, *programs)}
    for program in files.values():
        for node in program.nodes:
            if isinstance(node, ast.Attribute) and node.attr == last:
                where = program.place(node)
                is_read = isinstance(node.ctx, ast.Load)
                if where is not None and is_read:
                    yield node, nodes_around(where.statement, node), program


def _reads_outside(place: Place, name: str) -> Iterator[tuple[ast.expr, list[ast.AST], Program]]:
    """The same of a variable of the file, or of a function around; not what is others' own."""
    around = [one for one in place.around if isinstance(one, FUNCTIONS)]
    for node in place.program.nodes:
        if not (isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)):
            continue
        where = place.program.place(node)
        function = where.function if where is not None else None
        is_others = function is not None and function not in around and _has_own(function, name)
        if where is not None and not is_others:
            yield node, nodes_around(where.statement, node), place.program


def _has_own(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> bool:
    """Whether a function binds a name, or has an argument of that name."""
    return name in parameters(function) or any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
        for node in ast.walk(function)
    )


def fills(read: ast.expr, around: list[ast.AST]) -> bool:
    """Whether a read is for putting something in: ``x.append(…)``, ``x[k] = …``."""
    parent = around[-1] if around else None
    if isinstance(parent, ast.Call) and called_name(parent) in FILLING_FUNCTIONS:
        return parent.args[:1] == [read]
    if isinstance(parent, ast.Subscript) and parent.value is read:
        return isinstance(parent.ctx, (ast.Store, ast.Del)) or fills(parent, around[:-1])
    if not isinstance(parent, ast.Attribute) or parent.value is not read:
        return False
    call = around[-2] if len(around) > 1 else None
    if not isinstance(call, ast.Call) or call.func is not parent:
        return False
    if parent.attr == "setdefault":
        return fills(call, around[:-2])
    return parent.attr in FILLING or parent.attr in _MAKING


def is_measured(read: ast.expr, around: list[ast.AST]) -> bool:
    """Whether only the length is asked for, or whether it has a key: ``if name in self.maps``."""
    parent = around[-1] if around else None
    if isinstance(parent, ast.Compare) and parent.left is not read:
        return all(isinstance(one, (ast.In, ast.NotIn)) for one in parent.ops)
    return called_name(parent) in _OF_LENGTH if isinstance(parent, ast.Call) else False


def is_asked_for(read: ast.expr, around: list[ast.AST]) -> bool:
    """Whether only this is asked, if there is anything in it: ``if self.maps:``."""
    parent = around[-1] if around else None
    if isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not):
        return True
    if isinstance(parent, ast.BoolOp):
        parent = around[-2] if len(around) > 1 else None
        return isinstance(parent, (ast.If, ast.IfExp, ast.While))
    return isinstance(parent, (ast.If, ast.IfExp, ast.While)) and parent.test is read


def items_read(place: Place, name: str, programs: Sequence[Program]) -> ItemsRead | None:
    """The items that are all a program reads of a container that a statement fills.

    None where it reads others as well, where that cannot be told, and where it reads none.
    """
    name, *of_dict = name.split("[")  # of ``self.maps[key]`` the dict of lists
    has_lists = bool(of_dict or calls_in(place.statement, "setdefault"))
    reads = sorted(
        reads_of_container(place, name, programs),
        key=lambda one: (one[2].filename, one[0].lineno, one[0].col_offset),
    )
    is_in_order = any(_is_sorted_in_place(read, around) for read, around, _ in reads)
    parts: list[tuple[Which, str]] = []
    for read, around, program in reads:
        if (
            fills(read, around)
            or is_measured(read, around)
            or is_asked_for(read, around)
            or _is_sorted_in_place(read, around)
            or _is_asked_for_extreme(read, around)
        ):
            continue
        inner = _parts_of_lists(around, program) if has_lists else []
        if not inner and of_dict:
            entry = around[-1] if around else None
            if not isinstance(entry, ast.Subscript) or entry.value is not read:
                return None
            read, around = entry, around[:-1]  # noqa: PLW2901
        own = inner or [_part_read(read, around, program, is_in_order=is_in_order)]
        if None in own:
            return None
        parts += filter(None, own)
    texts = tuple(dict.fromkeys(text for _, text in parts))
    kinds = {which for which, _ in parts}
    return ItemsRead(kinds.pop(), texts) if len(kinds) == 1 else None


def _part_read(
    read: ast.expr, around: list[ast.AST], program: Program, *, is_in_order: bool
) -> tuple[Which, str] | None:
    """Which items one read takes, and how that is written; None where it may be any others."""
    items, outer = _with_all_items(read, around)
    parent = outer[-1] if outer else None
    if isinstance(parent, ast.Call) and called_name(parent) in JOINING and len(parent.args) == 1:
        rows = outer[-2] if len(outer) > 1 and not parent.keywords else None
        if not isinstance(rows, ast.Subscript) or not isinstance(rows.slice, ast.Slice):
            return None
        return (Which.NEWEST, ast.unparse(rows)) if _is_newest(rows.slice) else None
    if isinstance(parent, ast.Call):
        which = _taken_by(parent, items)
        if which is not None:
            return which, ast.unparse(parent)
        of_sorted = outer[-2] if len(outer) > 1 and called_name(parent) == "sorted" else None
        is_few = isinstance(of_sorted, ast.Subscript) and of_sorted.value is parent
        if not is_few or not isinstance(of_sorted, ast.Subscript) or not _are_few(of_sorted.slice):
            return None
        return Which.BEST, ast.unparse(of_sorted)
    if not isinstance(parent, ast.Subscript) or parent.value is not items:
        return None
    text = ast.unparse(parent)
    if is_in_order:
        return (Which.BEST, text) if _are_few(parent.slice) else None
    if _is_newest(parent.slice):
        return Which.NEWEST, text
    if isinstance(parent.slice, ast.Constant) and parent.slice.value == 0:
        return Which.FIRST, text
    which = _at_place(parent.slice, program)
    return (which, text) if which is not None else None


def _parts_of_lists(around: list[ast.AST], program: Program) -> list[tuple[Which, str] | None]:
    """The same of each read of the lists that a dict has: ``{k: v[-1] for k, v in x.items()}``.

    Empty where nothing goes through the dict so; None for each read that takes any other items.
    """
    if len(around) < len(("loop", "call", "method")) or not isinstance(around[-3], LOOPING):
        return []
    method, call, loop = around[-1], around[-2], around[-3]
    is_call = isinstance(call, ast.Call) and call.func is method and loop.iter is call
    if not is_call or not isinstance(method, ast.Attribute) or method.attr not in _OF_DICTS:
        return []
    target = loop.target
    if method.attr == "items" and isinstance(target, ast.Tuple):
        target = target.elts[-1]
    scope = loop if isinstance(loop, (ast.For, ast.AsyncFor)) else around[-4]
    if not isinstance(target, ast.Name):
        return []
    parts: list[tuple[Which, str] | None] = []
    for one, nodes in reads_of(scope, target.id):
        if not (is_measured(one, nodes) or is_asked_for(one, nodes) or fills(one, nodes)):
            parts.append(_part_read(one, nodes, program, is_in_order=False))
    return parts


def _with_all_items(read: ast.expr, around: list[ast.AST]) -> tuple[ast.expr, list[ast.AST]]:
    """What has the same items around a read, and the nodes around that: ``list(x.values())``."""
    node, outer = read, [*around]
    while outer:
        parent = outer[-1]
        if isinstance(parent, ast.Call) and called_name(parent) in ("list", "tuple"):
            is_given = len(parent.args) == 1 and parent.args[0] is node
            if not is_given:
                break
            node, outer = parent, outer[:-1]
        elif isinstance(parent, ast.Attribute) and parent.attr == "values" and len(outer) > 1:
            call = outer[-2]
            if not isinstance(call, ast.Call) or call.func is not parent:
                break
            node, outer = call, outer[:-2]
        else:
            break
    return node, outer


def _taken_by(call: ast.Call, items: ast.expr) -> Which | None:
    """Which items a function takes that is given all of them."""
    name = called_name(call)
    if name in _DRAWING and call.args and call.args[0] is items:
        return Which.DRAWN
    if name in _FEWEST:
        return Which.BEST if items in call.args[1:2] else None
    is_alone = len(call.args) == 1 and call.args[0] is items
    return Which.BEST if name in _EXTREMES and is_alone and call.keywords else None


def _at_place(index: ast.expr, program: Program) -> Which | None:
    """Which item is at a computed place: that of the best of other numbers, or one that is drawn.

    ``outputs[losses.index(min(losses))]``, also where a variable has that place.
    """
    if isinstance(index, ast.Slice):
        return None
    computed: list[ast.expr | None] = [index]
    if isinstance(index, ast.Name):
        where = program.place(index)
        if where is None:
            return None
        computed = _gone_through(where, index.id) or list(values_of(where, index.id))
    calls = {
        called_name(node)
        for value in computed
        if value is not None
        for node in ast.walk(value)
        if isinstance(node, ast.Call)
    }
    if None in computed or not calls:
        return None
    if calls & _DRAWING_PLACES:
        return Which.DRAWN
    return Which.BEST if calls & _OF_BEST and "len" not in calls else None


def _gone_through(where: Place, name: str) -> list[ast.expr | None]:
    """What loops and comprehensions of a function go through that bind a name."""
    return [
        node.iter
        for node in ast.walk(where.scope)
        if isinstance(node, (ast.For, ast.comprehension))
        and any(isinstance(one, ast.Name) and one.id == name for one in ast.walk(node.target))
    ]


def _are_few(index: ast.expr) -> bool:
    """``[:3]``, ``[0]``, ``[-1]`` of what is in an order."""
    if isinstance(index, ast.Slice):
        return (index.lower is None) != (index.upper is None) and index.step is None
    return isinstance(index, ast.Constant) or _is_newest(index)


def _is_newest(index: ast.expr) -> bool:
    """``-1``, or ``-8:``; a name may be anything."""
    if isinstance(index, ast.Slice):
        if index.upper is not None or index.step is not None or index.lower is None:
            return False
        index = index.lower
    is_from_end = isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.USub)
    return is_from_end and isinstance(getattr(index, "operand", None), ast.Constant)


def _is_sorted_in_place(read: ast.expr, around: list[ast.AST]) -> bool:
    """``runs.sort(key=…)``."""
    method = around[-1] if around else None
    return isinstance(method, ast.Attribute) and method.value is read and method.attr == "sort"


def _is_asked_for_extreme(read: ast.expr, around: list[ast.AST]) -> bool:
    """``min(loss for loss, _ in runs)`` reads a number of each."""
    call = around[-3] if len(around) > 2 else None
    each = around[-2] if len(around) > 1 else None
    loop = around[-1] if around else None
    if not isinstance(loop, ast.comprehension) or loop.iter is not read or loop.ifs:
        return False
    if not isinstance(each, (ast.GeneratorExp, ast.ListComp)) or not isinstance(call, ast.Call):
        return False
    parts = loop.target.elts if isinstance(loop.target, ast.Tuple) else []
    is_part = len(parts) > 1 and any(ast.unparse(one) == ast.unparse(each.elt) for one in parts)
    return called_name(call) in _EXTREMES and is_part
