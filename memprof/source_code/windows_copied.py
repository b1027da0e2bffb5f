"""Overlapping windows of a sequence that a statement copies and joins into one tensor."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from memprof.source_code.call_sites import handed_over
from memprof.source_code.program import (
    LOOPS,
    Place,
    assigned,
    bound_names,
    called_name,
    calls_in,
)
from memprof.source_code.values import last_binding, returned_by, values_of
from memprof.source_code.verbs import CONVERTING, COPYING, JOINING, SAME_VALUES

__all__ = ["CopiedWindows", "copied_windows"]

_CONVERTING = frozenset(("as_tensor", "asarray", "from_numpy", "tensor"))
_UNCHANGED = (
    _CONVERTING
    | CONVERTING
    | COPYING
    | SAME_VALUES
    | {"FloatTensor", "Tensor", "array", "astype", "detach", "numpy", "t"}
)
"""Calls after which a window is still there, value by value: of a mean of it nothing is twice."""
_OF_LISTS = frozenset(("FloatTensor", "Tensor", "array", "as_tensor", "asarray", "tensor"))
"""Calls that join what a list holds, as they would convert an array."""
_COPYING = ("clone", "contiguous", "reshape")
_OF_UNFOLD = 3
"""Arguments of a tensor's `unfold`."""
_NARROW, _OF_NARROW = "narrow", 3
_RANGE_WITH_STEP = 3
"""Arguments of `range`."""
_PASSING = ("enumerate", "list", "reversed", "tqdm", "tuple")
"""Functions that give what they are given, one by one."""
_DEEPEST = 4
"""Lists that are made of one another, until they are given up."""


@dataclass(frozen=True, slots=True, eq=False)
class CopiedWindows:
    """Which sequence it is, and how the windows are known to overlap."""

    sequence: str
    """As the program writes it: ``signal``, ``self.series``."""
    is_overlapping: bool
    """By syntax a window is longer than what lies between two starts."""
    is_converted: bool
    """The sequence is no tensor: its parts are made tensors."""
    is_view: bool = False
    """They are a view already, of `unfold`, before they are copied."""
    is_indexed: bool = False
    """A table of positions takes them, all at once."""
    is_computed: bool = False
    """No copies, but something is computed of each value of the view."""
    is_each: bool = False
    """Each is a tensor of its own, copied as a loop comes to it."""


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """An expression whose values are joined, with the loop that makes them one after the other."""

    value: ast.expr
    variables: frozenset[str]
    """What the loop changes."""
    step: ast.expr | None
    """By how much, where it counts; None where it goes through something else."""
    place: Place | None = None
    """Of a generator of the file: where it yields that."""


@dataclass(frozen=True, slots=True, eq=False)
class _Slice:
    """A part that is a slice both of whose ends move with the loop."""

    sequence: ast.expr
    start: ast.expr
    length: ast.expr


def copied_windows(place: Place) -> CopiedWindows | None:
    """``torch.stack([x[i : i + n] for i in …])``, also by way of a list that a loop fills.

    Or ``torch.tensor(x)`` of what NumPy joins of such a list, there or before.
    """
    for at, call, is_array in _joining(place):
        for part in _items(at, call.args[0]):
            within = part.place or at
            window = _window_of(within, part)
            overlaps = _overlaps(within, window, part) if window is not None else False
            if window is not None and overlaps is not False:
                return CopiedWindows(
                    ast.unparse(window.sequence),
                    overlaps is True,
                    is_array or bool(calls_in(part.value, *_CONVERTING)),
                )
    return _copied_view(place) or _of_index_table(place) or _copied_one_by_one(place)


def _copied_one_by_one(place: Place) -> CopiedWindows | None:
    """``samples.append(x[i : i + n].clone())`` in a loop, or in a comprehension."""
    for call in calls_in(place.statement, *_COPYING, *_OF_LISTS):
        is_array = called_name(call) in _OF_LISTS - {"array", "as_tensor", "asarray"}
        receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
        copied = call.args[0] if is_array and call.args else receiver
        if copied is None or not (is_array or called_name(call) in _COPYING):
            continue
        parts = [_part_of_loop(copied, place.loop)] if place.loop is not None else []
        parts += [
            _part(copied, one.target, _meanings(place, one.iter)[-1])
            for node in ast.walk(place.statement)
            if isinstance(node, (ast.GeneratorExp, ast.ListComp))
            for one in node.generators
        ]
        for part in parts:
            window = _window_of(place, part)
            if window is not None and _overlaps(place, window, part):
                of = ast.unparse(window.sequence)
                return CopiedWindows(of, True, is_array, is_each=True)
    return None


def _joining(place: Place) -> Iterator[tuple[Place, ast.Call, bool]]:
    """Calls that join a list in a statement, or before it what it makes a tensor of.

    Each with its statement, and whether what is joined are parts of an array.
    """
    for call in calls_in(place.statement):
        name, is_converting = called_name(call), called_name(call) in _OF_LISTS | _CONVERTING
        if not call.args or not (is_converting or name in JOINING):
            continue
        yield place, call, is_converting
        for at, value in _origins(place, call.args[0]) if is_converting else ():
            if called_name(value) in JOINING | _OF_LISTS and value.args:
                yield at, value, True


def _origins(place: Place, value: ast.expr, depth: int = 0) -> Iterator[tuple[Place, ast.Call]]:
    """Calls that an array comes from, value by value, each with its statement.

    Through variables, parameters and functions of the file, also one of several results.
    """
    if depth > _DEEPEST:
        return
    if isinstance(value, ast.Call):
        yield place, value
        if called_name(value) in _UNCHANGED:
            of = [value.func.value] if isinstance(value.func, ast.Attribute) else []
            for one in [*value.args[:1], *of]:
                yield from _origins(place, one, depth + 1)
        for at, returned in returned_by(place, value):
            yield from _origins(at, returned, depth + 1)
    elif isinstance(value, ast.Name):
        bound = last_binding(place, value)
        handed = handed_over(place, value, [place.program]) if bound is None else None
        if handed is not None:
            yield from _origins(*handed, depth + 1)
        elif bound is not None:
            yield from _origins_of_bound(bound, value.id, depth)
    elif isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant):
        yield from _origins_of_result(place, value.value, value.slice.value, depth)


def _origins_of_bound(place: Place, name: str, depth: int) -> Iterator[tuple[Place, ast.Call]]:
    """The same of what a statement binds to a variable: one of several results, too."""
    for target, value in assigned(place.statement):
        if not isinstance(target, ast.Name) or target.id != name or value is None:
            continue
        at = [isinstance(one, ast.Name) and one.id == name for one in bound_names(place.statement)]
        if len(at) == 1 or not isinstance(value, ast.Call):
            yield from _origins(place, value, depth + 1)
            continue
        yield from _origins_of_result(place, value, at.index(True), depth)


def _origins_of_result(
    place: Place, call: ast.expr, at: object, depth: int
) -> Iterator[tuple[Place, ast.Call]]:
    """The same of one of the results of a function of the file."""
    for within, returned in returned_by(place, call):
        results = returned.elts if isinstance(returned, ast.Tuple) else []
        if isinstance(at, int) and 0 <= at < len(results):
            yield from _origins(within, results[at], depth + 1)


def _of_index_table(place: Place) -> CopiedWindows | None:
    """``x[starts[:, None] + torch.arange(size)]``: each row of the index is a window."""
    for node in ast.walk(place.statement):
        if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Load):
            continue
        axes = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for axis in axes:
            for table in _meanings(place, axis):
                if _is_index_table(place, table):
                    text = ast.unparse(node.value)
                    is_array = bool(calls_in(place.statement, *_CONVERTING))
                    return CopiedWindows(text, True, is_array, is_indexed=True)
    return None


def _is_index_table(place: Place, table: ast.expr) -> bool:
    """Whether a sum is of starts, one below the other, and of ``arange(size)`` beside them.

    Where what lies between two starts is that size, no value is there twice.
    """
    if not isinstance(table, ast.BinOp) or not isinstance(table.op, ast.Add):
        return False
    sides = [_meanings(place, one)[-1] for one in (table.left, table.right)]
    counts = [calls_in(side, "arange") for side in sides]
    if not all(len(calls) == 1 for calls in counts) or not any(map(_has_new_axis, sides)):
        return False
    ends = [call.args for (call,) in counts]
    strides = [
        factor
        for side, args in zip(sides, ends, strict=True)
        for factor in [
            *(args[2:3]),
            *(
                one
                for node in ast.walk(side)
                if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
                for one in (node.left, node.right)
                if not calls_in(one, "arange")
            ),
        ]
    ]
    sizes = [args[0] for args in ends if len(args) == 1]
    for stride in strides:
        step = _number(place, stride)
        for size in sizes:
            length = _number(place, size)
            if ast.unparse(stride) == ast.unparse(size):
                return False
            if step is not None and length is not None and step >= length:
                return False
    return True


def _has_new_axis(side: ast.expr) -> bool:
    """Whether an index by ``None``, `unsqueeze` or `reshape` sets the values below one another."""
    if calls_in(side, "reshape", "unsqueeze", "view", "expand_dims"):
        return True
    return any(
        isinstance(node, ast.Subscript)
        and any(
            (isinstance(one, ast.Constant) and one.value is None)
            or (isinstance(one, ast.Attribute) and one.attr == "newaxis")
            for one in ast.walk(node.slice)
        )
        for node in ast.walk(side)
    )


def _copied_view(place: Place) -> CopiedWindows | None:
    """``torch.cat([x.unfold(0, size, step) for x in …])``, ``x.unfold(0, size, step).clone()``."""
    for call in calls_in(place.statement):
        name, receiver = called_name(call), getattr(call.func, "value", None)
        joined = [*call.args[:1]] if name in JOINING else []
        values = [one for value in joined for one in _joined_values(place, value)]
        if name in _COPYING and receiver is not None:
            values.append(receiver)
        for value in values:
            unfolding = _unfolding(place, value)
            if unfolding is not None:
                return CopiedWindows(ast.unparse(unfolding), False, False, is_view=True)
    for value in _operands(getattr(place.statement, "value", None)):
        unfolding = _unfolding(place, value)
        if unfolding is not None:
            of = ast.unparse(unfolding)
            return CopiedWindows(of, False, False, is_view=True, is_computed=True)
    return None


def _operands(value: ast.expr | None) -> Iterator[ast.expr]:
    """What an expression is computed of value by value: ``x`` of ``(x - mean) / std``."""
    sides = [value.left, value.right] if isinstance(value, ast.BinOp) else []
    for side in sides if not isinstance(getattr(value, "op", None), ast.MatMult) else ():
        yield side
        yield from _operands(side)


def _joined_values(place: Place, joined: ast.expr) -> Iterator[ast.expr]:
    """Expressions whose values, or whose items, are joined: also those put into a list before."""
    yield from (part.value for part in _items(place, joined))
    if isinstance(joined, ast.Call) and called_name(joined) in ("list", "tuple"):
        yield from joined.args[:1]
    if isinstance(joined, ast.Name):
        for call in calls_in(place.scope, "extend"):
            of = call.func.value if isinstance(call.func, ast.Attribute) else None
            if isinstance(of, ast.Name) and of.id == joined.id:
                yield from call.args[:1]


def _unfolding(place: Place, value: ast.expr) -> ast.expr | None:
    """What a value is windows of by ``x.unfold(dimension, size, step)``; None where it is none."""
    if isinstance(value, ast.Name):
        bound = list(values_of(place, value.id))
        value = bound[0] if len(bound) == 1 and bound[0] is not None else value
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        given = len(value.args) + len(value.keywords)
        if value.func.attr == "unfold" and given == _OF_UNFOLD:
            return value.func.value
        value = value.func.value
    return None


def _items(place: Place, held: ast.expr, depth: int = 0) -> Iterator[_Part]:
    """What an expression holds: items of a comprehension, or put into a list by a loop."""
    if depth > _DEEPEST:
        return
    if isinstance(held, (ast.ListComp, ast.GeneratorExp)):
        for generator in held.generators:
            iterated = _meanings(place, generator.iter)[-1]
            yield _part(held.elt, generator.target, iterated)
            for item in _items(place, generator.iter, depth + 1):
                taken = _taken(held.elt, generator.target, item.value)
                if taken is not None:
                    yield replace(item, value=taken)
    elif isinstance(held, ast.Call) and called_name(held) in _PASSING and held.args:
        yield from _items(place, held.args[0], depth + 1)
    elif isinstance(held, ast.Call):
        yield from _yielded(place, held)
    elif isinstance(held, (ast.Name, ast.Attribute)):
        yield from _items_of_name(place, held, depth)


def _yielded(place: Place, call: ast.Call) -> Iterator[_Part]:
    """What a generator of the file yields, in a loop of its own."""
    functions = place.program.functions(called_name(call))
    for node in ast.walk(functions[0]) if len(functions) == 1 else ():
        at = place.program.place(node) if isinstance(node, ast.Yield) else None
        if at is not None and at.loop is not None and isinstance(node, ast.Yield) and node.value:
            yield replace(_part_of_loop(node.value, at.loop), place=at)


def _items_of_name(place: Place, held: ast.expr, depth: int) -> Iterator[_Part]:
    """What the function puts into a list, or binds its name to."""
    text = ast.unparse(held)
    for node in ast.walk(place.scope):
        for target, value in assigned(node):
            if ast.unparse(target) == text and value is not None:
                yield from _items(place, value, depth + 1)
        yield from _unzipped(place, node, text, depth)
        if isinstance(node, LOOPS):
            for call in calls_in(node, "append"):
                of = call.func.value if isinstance(call.func, ast.Attribute) else None
                if of is not None and ast.unparse(of) == text and call.args:
                    yield _part_of_loop(call.args[0], node)
                    yield from _parts_of_items(place, call.args[0], node, depth)


def _parts_of_items(
    place: Place, value: ast.expr, loop: ast.For | ast.AsyncFor | ast.While, depth: int
) -> Iterator[_Part]:
    """What a loop takes of the items that it goes through, where it puts that into a list."""
    if not isinstance(loop, ast.While):
        for item in _items(place, loop.iter, depth + 1):
            taken = _taken(value, loop.target, item.value)
            if taken is not None:
                yield replace(item, value=taken)


def _unzipped(place: Place, node: ast.AST, text: str, depth: int) -> Iterator[_Part]:
    """What ``x, y = zip(*pairs)`` takes of each item for a name."""
    if not isinstance(node, ast.Assign) or called_name(node.value) != "zip":
        return
    assert isinstance(node.value, ast.Call)
    names = [ast.unparse(one) for one in bound_names(node)]
    if len(node.value.args) != 1 or text not in names:
        return
    if isinstance(node.value.args[0], ast.Starred):
        at = names.index(text)
        for item in _items(place, node.value.args[0].value, depth + 1):
            if isinstance(item.value, ast.Tuple) and at < len(item.value.elts):
                yield replace(item, value=item.value.elts[at])


def _taken(taking: ast.expr, target: ast.expr, item: ast.expr) -> ast.expr | None:
    """What ``[x for x, _ in pairs]`` or ``[one[0] for one in pairs]`` takes of an item."""
    if ast.unparse(taking) == ast.unparse(target):
        return item
    entries = item.elts if isinstance(item, ast.Tuple) else []
    at = -1
    if isinstance(target, ast.Tuple):
        names = [ast.unparse(one) for one in target.elts]
        at = names.index(ast.unparse(taking)) if ast.unparse(taking) in names else -1
    elif isinstance(taking, ast.Subscript) and isinstance(taking.slice, ast.Constant):
        is_of_item = ast.unparse(taking.value) == ast.unparse(target)
        at = taking.slice.value if is_of_item and type(taking.slice.value) is int else -1
    return entries[at] if 0 <= at < len(entries) else None


def _part(value: ast.expr, target: ast.expr, iterated: ast.expr) -> _Part:
    while isinstance(iterated, ast.Call) and called_name(iterated) in _PASSING and iterated.args:
        iterated = iterated.args[0]
    step: ast.expr | None = None
    if isinstance(iterated, ast.Call) and called_name(iterated) == "range":
        with_step = len(iterated.args) == _RANGE_WITH_STEP
        step = iterated.args[-1] if with_step else ast.Constant(1)
    return _Part(value, frozenset(_names(target)), step)


def _part_of_loop(value: ast.expr, loop: ast.For | ast.AsyncFor | ast.While) -> _Part:
    if not isinstance(loop, ast.While):
        return _part(value, loop.target, loop.iter)
    counting = [
        node
        for node in ast.walk(loop)
        if isinstance(node, ast.AugAssign)
        and isinstance(node.op, ast.Add)
        and isinstance(node.target, ast.Name)
    ]
    names = frozenset(node.target.id for node in counting if isinstance(node.target, ast.Name))
    return _Part(value, names, counting[0].value if len(counting) == 1 else None)


def _window_of(place: Place, part: _Part) -> _Slice | None:
    """The slice that a part is, both of whose ends move with the loop's variable."""
    for node in _unchanged(place, part.value):
        if isinstance(node, ast.Call):
            start, length = node.args[1:]
            moves = part.variables & _names(start) and not part.variables & _names(length)
            receiver = node.func.value if isinstance(node.func, ast.Attribute) else node.func
            return _Slice(receiver, start, length) if moves else None
        axes = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for axis in axes:
            if not (isinstance(axis, ast.Slice) and axis.lower and axis.upper):
                continue
            ends = _meanings(place, axis.lower), _meanings(place, axis.upper)
            window = _of_ends(node.value, *ends)
            if window is not None and part.variables & _names(window.start):
                fixed = not part.variables & _names(window.length)
                return window if fixed else None
    return None


def _unchanged(place: Place, value: ast.expr, depth: int = 0) -> Iterator[ast.Subscript | ast.Call]:
    """The slices that an expression is, also scaled, converted or in another shape.

    Or calls of a tensor's `narrow`, with its dimension, start and length. A variable is what it is
    bound to, where that is one thing.
    """
    if depth > _DEEPEST:
        return
    if isinstance(value, ast.Name):
        meant = _meanings(place, value)[-1]
        is_followed = isinstance(meant, (ast.Subscript, ast.Call, ast.BinOp))
        yield from _unchanged(place, meant, depth + 1) if is_followed else ()
        return
    if isinstance(value, ast.Subscript):
        yield value
    if isinstance(value, ast.Call) and called_name(value) == _NARROW:
        if len(value.args) == _OF_NARROW and isinstance(value.func, ast.Attribute):
            yield value
        return
    inner: list[ast.expr] = []
    if isinstance(value, ast.Call) and called_name(value) in _UNCHANGED:
        inner = [*value.args[:1]]
        if isinstance(value.func, ast.Attribute):
            inner.append(value.func.value)
    elif isinstance(value, ast.BinOp) and not isinstance(value.op, ast.MatMult):
        inner = [value.left, value.right]
    elif isinstance(value, (ast.Attribute, ast.Subscript)):
        inner = [value.value]
    elif isinstance(value, ast.UnaryOp):
        inner = [value.operand]
    for one in inner:
        yield from _unchanged(place, one, depth)


def _meanings(place: Place, value: ast.expr) -> list[ast.expr]:
    """An expression, and what it is where it is a name that the function binds once."""
    if isinstance(value, ast.Name):
        bound = list(values_of(place, value.id))
        if len(bound) == 1 and bound[0] is not None:
            return [value, bound[0]]
    return [value]


def _of_ends(sequence: ast.expr, lower: list[ast.expr], upper: list[ast.expr]) -> _Slice | None:
    """A slice of ``i`` and ``i + n``, or of ``i - n`` and ``i``: a fixed number of values."""
    for one, others, sign in ((lower, upper, ast.Add), (upper, lower, ast.Sub)):
        for far in others:
            if not (isinstance(far, ast.BinOp) and isinstance(far.op, sign)):
                continue
            for near in one:
                if ast.unparse(far.left) == ast.unparse(near):
                    return _Slice(sequence, one[-1], far.right)
                if sign is ast.Add and ast.unparse(far.right) == ast.unparse(near):
                    return _Slice(sequence, one[-1], far.left)
    return None


def _overlaps(place: Place, window: _Slice, part: _Part) -> bool | None:
    """Whether a window is longer than what lies between two starts; None where that is not known.

    A window that begins at every value is taken for one of several values.
    """
    stride = _stride(window.start, part)
    if stride is None:
        return None
    step, length = _number(place, stride), _number(place, window.length)
    if step is not None and length is not None:
        return length > step
    if ast.unparse(stride) == ast.unparse(window.length):
        return False
    if step == 1:
        return True
    if isinstance(stride, ast.BinOp) and isinstance(stride.op, (ast.Div, ast.FloorDiv)):
        return True if ast.unparse(stride.left) == ast.unparse(window.length) else None
    return None


def _stride(start: ast.expr, part: _Part) -> ast.expr | None:
    """What lies between two starts: ``n`` of ``range(0, end, n)``, ``k`` of ``i * k``."""
    if isinstance(start, ast.Name):
        return part.step if start.id in part.variables else None
    if not isinstance(start, ast.BinOp):
        return None
    moving = [one for one in (start.left, start.right) if part.variables & _names(one)]
    if len(moving) != 1:
        return None
    if isinstance(start.op, (ast.Add, ast.Sub)):
        return _stride(moving[0], part)
    is_one = isinstance(part.step, ast.Constant) and part.step.value == 1
    if isinstance(start.op, ast.Mult) and isinstance(moving[0], ast.Name) and is_one:
        return start.right if moving[0] is start.left else start.left
    return None


def _number(place: Place, value: ast.expr) -> int | None:
    """A number that is written out, or that a name stands for in the function or in the file."""
    if isinstance(value, ast.Name):
        bound = list(values_of(place, value.id)) or [
            one
            for node in place.program.tree.body
            for target, one in assigned(node)
            if ast.unparse(target) == value.id
        ]
        value = bound[0] if len(bound) == 1 and bound[0] is not None else value
    if isinstance(value, ast.Constant) and type(value.value) is int:
        return value.value
    return None


def _names(expression: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(expression) if isinstance(node, ast.Name)}
