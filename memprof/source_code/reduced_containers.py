"""Containers of which a program reads nothing but reductions over what they have collected."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from memprof.source_code.container_reads import (
    fills,
    is_asked_for,
    is_measured,
    reads_of_container,
)
from memprof.source_code.program import Place, Program, bound_names, called_name, own_calls
from memprof.source_code.reductions import (
    Reduced,
    Reduction,
    needs_more,
    reducing,
    reduction_of,
)
from memprof.source_code.scopes import COMPREHENSIONS, reads_of
from memprof.source_code.verbs import JOINING

__all__ = ["fields_read", "reads_of_items", "reduction_of_all", "sum_of_items"]

_HANDING = frozenset(("items", "values"))
_CONVERTING = frozenset(("clone", "cpu", "detach", "double", "float", "to"))
"""Methods whose result has the same values."""
_SUMS = frozenset(("mean", "sum"))


def reduction_of_all(place: Place, name: str, programs: Sequence[Program]) -> Reduction | None:
    """How a container is reduced that a statement fills; None where it is read in other ways.

    ``torch.stack(self.maps).mean(0)`` is all that a program does with the list ``self.maps``; of a
    dict of lists the same is done in a loop over its values. Whatever has its name anywhere in the
    file may be the container; of an attribute in any file.
    """
    name, *of_dict = name.split("[")  # of ``self.maps[key]`` the dict of lists
    reductions: list[Reduction] = []
    joined_at: ast.stmt | None = None
    in_order = sorted(reads_of_container(place, name, programs), key=lambda one: one[0].lineno)
    for read, around, program in in_order:
        if fills(read, around) or is_measured(read, around):
            continue
        if joined_at is not None and read.lineno > (joined_at.end_lineno or joined_at.lineno):
            continue  # by now it is the joined tensor that has the name
        joined_at = joined_at or _joined_under(name, place, read)
        entry = _entry(read, around) if of_dict else None
        if entry is None:
            reduction = _reduction(read, around, program)
        else:
            reduction = _reduction(entry, around[:-1], program)
        if reduction is None:
            return None
        reductions.append(reduction)
    return reductions[0] if len(reductions) == 1 else None


def reads_of_items(
    place: Place, name: str, programs: Sequence[Program]
) -> Iterator[tuple[ast.expr, Program]]:
    """Reads of a container that a statement fills, and their files; not of its length alone."""
    for read, around, program in reads_of_container(place, name, programs):
        if not (fills(read, around) or is_measured(read, around)):
            yield read, program


def fields_read(place: Place, name: str, programs: Sequence[Program]) -> frozenset[str]:
    """The attributes that a program reads of a container's items; none where it reads others.

    ``results[key].metrics``, and ``result.metrics`` in a loop over ``results.items()``.
    """
    fields: set[str] = set()
    for read, around, _ in reads_of_container(place, name, programs):
        if fills(read, around) or is_measured(read, around) or is_asked_for(read, around):
            continue
        own = _fields_of_read(read, around)
        if not own:
            return frozenset()
        fields |= own
    return frozenset(fields)


def _fields_of_read(read: ast.expr, around: list[ast.AST]) -> set[str]:
    """The attributes of items by one read of their container; empty where not they alone."""
    parents = [*around]
    parent = parents[-1] if parents else None
    if isinstance(parent, ast.Subscript) and parent.value is read and len(parents) > 1:
        return {above.attr} if isinstance(above := parents[-2], ast.Attribute) else set()
    is_handed = isinstance(parent, ast.Attribute) and parent.attr in _HANDING
    if is_handed and len(parents) > 1 and isinstance(parents[-2], ast.Call):
        read, parents = parents[-2], parents[:-2]
    loop = parents[-1] if parents else None
    scope: ast.AST | None = None
    if isinstance(loop, ast.For) and loop.iter is read:
        scope = loop
    elif isinstance(loop, ast.comprehension) and loop.iter is read and len(parents) > 1:
        scope = parents[-2]
    if scope is None or not isinstance(loop, (ast.For, ast.comprehension)):
        return set()
    target = loop.target
    if called_name(read) == "items" and isinstance(target, ast.Tuple):
        target = target.elts[-1]
    if not isinstance(target, ast.Name):
        return set()
    uses = [above[-1] for _, above in reads_of(scope, target.id)]
    names = {one.attr if isinstance(one, ast.Attribute) else "" for one in uses}
    return names if "" not in names else set()


def sum_of_items(place: Place, name: str, programs: Sequence[Program]) -> Reduction | None:
    """How a program adds up the items of a list, where it reads nothing else of it; else None.

    ``for one in self.states[1:]: total += one[key]``, or ``torch.stack([one[key] for one in
    self.states]).mean(0)``. With the first item the sum may begin, or its keys are asked for.
    """
    texts: list[str] = []
    joined_at: Place | None = None
    for read, around, program in reads_of_container(place, name, programs):
        if fills(read, around) or is_measured(read, around) or is_asked_for(read, around):
            continue
        items, outer = read, around
        if around and isinstance(around[-1], ast.Subscript) and around[-1].value is read:
            if isinstance(around[-1].slice, ast.Constant):
                continue  # one item
            items, outer = around[-1], around[:-1]
            if not isinstance(items.slice, ast.Slice):
                return None
        text = _sum_of(items, outer, program)
        if not text:
            return None
        texts.append(text)
        joined_at = program.place(read)
    return Reduction(Reduced.OVER_PARTS, (texts[0],), (), joined_at) if texts else None


def _sum_of(items: ast.expr, around: list[ast.AST], program: Program) -> str:
    """How what goes over all items adds them up; empty where it does anything else."""
    parent = around[-1] if around else None
    if isinstance(parent, ast.For) and parent.iter is items and isinstance(parent.target, ast.Name):
        return _sum_in_loop(parent, parent.target.id, program)
    of_each = around[-2] if len(around) > 1 else None
    if (
        not isinstance(parent, ast.comprehension)
        or parent.iter is not items
        or parent.ifs
        or not isinstance(of_each, (ast.ListComp, ast.GeneratorExp))
        or not isinstance(parent.target, ast.Name)
        or not _is_of_item(of_each.elt, parent.target.id)
    ):
        return ""
    calls = [one for one in around[:-2] if isinstance(one, ast.Call)]
    if calls and called_name(calls[-1]) == "sum":
        return ast.unparse(calls[-1])
    if len(calls) > 1 and called_name(calls[-1]) in JOINING and called_name(calls[-2]) in _SUMS:
        return ast.unparse(calls[-2])
    return ""


def _sum_in_loop(loop: ast.For, name: str, program: Program) -> str:
    """The first statement of a loop that adds an item up; empty where one is read otherwise."""
    texts: list[str] = []
    for statement in loop.body:
        for load, around in reads_of(statement, name):
            parent = around[-1] if around else None
            if isinstance(parent, ast.For) and parent.iter is load:
                continue  # its keys
            inner = next((one for one in reversed(around) if isinstance(one, ast.stmt)), statement)
            if isinstance(inner, ast.For) and called_name(inner.iter) in _HANDING:
                target = inner.target
                target = target.elts[-1] if isinstance(target, ast.Tuple) else target
                text = _sum_in_loop(inner, getattr(target, "id", ""), program)
            else:
                text = ast.unparse(inner) if _adds(inner, name) else ""
            if not text:
                return ""
            texts.append(text)
    return texts[0] if texts else ""


def _adds(statement: ast.stmt, name: str) -> bool:
    """Whether a statement adds what an item has to a sum."""
    if isinstance(statement, ast.AugAssign):
        return isinstance(statement.op, ast.Add) and _is_of_item(statement.value, name)
    if isinstance(statement, ast.Expr) and called_name(statement.value) == "add_":
        given = getattr(statement.value, "args", [])
        return len(given) == 1 and _is_of_item(given[0], name)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    value, total = statement.value, ast.unparse(statement.targets[0])
    is_sum = isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add)
    if not is_sum or not isinstance(value, ast.BinOp):
        return False
    parts = [one for one in (value.left, value.right) if ast.unparse(one) != total]
    return len(parts) == 1 and _is_of_item(parts[0], name)


def _is_of_item(value: ast.expr, name: str) -> bool:
    """Whether an expression is an item, or what it has under a key; also a fixed part of it."""
    while True:
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div):
            is_fixed = isinstance(value.right, ast.Constant) or called_name(value.right) == "len"
            if not is_fixed:
                return False
            value = value.left
        elif isinstance(value, ast.Call) and called_name(value) in _CONVERTING:
            if not isinstance(value.func, ast.Attribute):
                return False
            value = value.func.value
        elif isinstance(value, ast.Subscript):
            value = value.value
        else:
            return isinstance(value, ast.Name) and value.id == name


def _entry(read: ast.expr, around: list[ast.AST]) -> ast.Subscript | None:
    """What a read takes under a key, ``self.maps[key]``; None where it takes nothing so."""
    above = around[-1] if around else None
    return above if isinstance(above, ast.Subscript) and above.value is read else None


def _joined_under(name: str, place: Place, read: ast.expr) -> ast.stmt | None:
    """The statement of a read, where that binds what it joins to the name itself, in no loop."""
    where = place.program.place(read)
    if where is None or where.loop is not None or not own_calls(where.statement, *JOINING):
        return None
    names = {one.id for one in bound_names(where.statement) if isinstance(one, ast.Name)}
    return where.statement if name in names else None


def _reduction(read: ast.expr, around: list[ast.AST], program: Program) -> Reduction | None:
    """How the statement of a read, or of the loop over what it holds, reduces what is joined."""
    parents = [*around]
    if (
        len(parents) > 1
        and isinstance(parents[-1], ast.Attribute)
        and parents[-1].attr in _HANDING
        and isinstance(parents[-2], ast.Call)
    ):
        read, parents = parents[-2], parents[:-2]
    parent = parents[-1] if parents else None
    if isinstance(parent, (ast.For, ast.AsyncFor)) and parent.iter is read:
        return _in_loop(parent, program)
    if isinstance(parent, ast.comprehension) and parent.iter is read and len(parents) > 1:
        target = parent.target
        if called_name(read) == "items" and isinstance(target, ast.Tuple):
            target = target.elts[-1]
        return _of_each(parents[-2], target, program)
    joined = parent
    if not isinstance(joined, ast.Call) or called_name(joined) not in JOINING:
        return None
    where = program.place(joined)
    joins = own_calls(where.statement, *JOINING) if where is not None else []
    joins.sort(key=lambda call: (call.lineno, call.col_offset))
    if where is None or joined not in joins:
        return None
    return reduction_of(where, number=joins.index(joined))


def _in_loop(loop: ast.For | ast.AsyncFor, program: Program) -> Reduction | None:
    """How each part is reduced that a loop goes through; its only use."""
    target = loop.target.elts[-1] if isinstance(loop.target, ast.Tuple) else loop.target
    if not isinstance(target, ast.Name):
        return None
    where = program.at(loop.body[0].lineno)
    if where is None:
        return None
    loads = [
        (load, nodes)
        for load, nodes in reads_of(where.scope, target.id)
        if loop.lineno <= load.lineno <= (loop.end_lineno or loop.lineno)
    ]
    reductions = [
        _reduction(load, nodes, program) for load, nodes in loads if not is_measured(load, nodes)
    ]
    if len(reductions) == 1 and reductions[0] is not None:
        return reductions[0]
    return _of_each(loop, target, program)


def _of_each(scope: ast.AST, target: ast.expr, program: Program) -> Reduction | None:
    """The calls that reduce an item, or a part of it, wherever a loop or a comprehension reads it.

    With nothing but the item: ``[rows[1:-1].mean(0) for rows in self.rows]``.
    """
    where = program.place(target)
    if not isinstance(target, ast.Name) or where is None:
        return None
    calls = []
    for load, nodes in reads_of(scope, target.id):
        is_before = load.lineno < target.lineno and not isinstance(scope, COMPREHENSIONS)
        if is_measured(load, nodes) or is_before:
            continue
        node, around = _part(load, nodes)
        call = reducing(node, around) if around else None
        if call is None or needs_more(where, call, target.id):
            return None
        calls.append(call)
    texts = tuple(dict.fromkeys(ast.unparse(call) for call in calls))
    return Reduction(Reduced.EACH_PART, texts, tuple(c.lineno for c in calls)) if texts else None


def _part(load: ast.expr, nodes: list[ast.AST]) -> tuple[ast.AST, list[ast.AST]]:
    """What is taken of an item by places that are written out, and the nodes around that."""
    node: ast.AST = load
    around = [*nodes]
    while around and isinstance(around[-1], ast.Subscript) and around[-1].value is node:
        if any(isinstance(one, ast.Name) for one in ast.walk(around[-1].slice)):
            break
        node = around.pop()
    return node, around
