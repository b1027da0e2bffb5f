"""One-hot tables that a statement makes.

By `one_hot`, by zeros into which ones are written, by rows of `eye`, or by a comparison of indices
with all classes.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from memprof.source_code.idioms import keyword, without_casts
from memprof.source_code.program import Place, assigned, bound_names, called_name, calls_in
from memprof.source_code.values import values_of

__all__ = ["Encoding", "encodings", "is_returned", "reads_besides", "returned_to"]

_MAKER = "one_hot"
_LIKE = "zeros_like"
_ZEROS = frozenset(("new_zeros", "zeros", _LIKE))
_IDENTITY, _COUNTING = "eye", "arange"
_IN_PLACE, _WRITING = "scatter_", ("scatter", "scatter_")
_RESHAPING = frozenset(("reshape", "view"))
_DIMENSIONS = 2


@dataclass(frozen=True, slots=True, eq=False)
class Encoding:
    """Such a table."""

    made: ast.expr
    """The expression that is the table, or the zeros that become it."""
    index: str
    """The class of each row, as it is written; empty where that is not known."""
    classes: str
    """How many there are, likewise."""
    is_turned: bool = False
    """It has a column for each row of the data, and a row for each class."""
    filling: ast.stmt | None = None
    """The statement that writes the ones, where that is another one."""
    makes_more: bool = False
    """The statement makes an identity matrix besides, or truth values, and nothing else."""


def encodings(place: Place) -> list[Encoding]:
    """The one-hot tables that a statement makes, in order of lines."""
    tables = [_by_function(call) for call in calls_in(place.statement, _MAKER)]
    for call in calls_in(place.statement, *_WRITING):
        zeros = without_casts(call.func.value) if isinstance(call.func, ast.Attribute) else None
        written = _written(zeros, call)
        if written is not None:
            tables.append(Encoding(call, *written))
    tables += _taken_or_compared(place)
    if not tables:
        filled = _filled_later(place)
        tables += [filled] if filled is not None else []
    return tables


def _by_function(call: ast.Call) -> Encoding:
    given = [*call.args, *(one.value for one in call.keywords)]
    texts = [*map(ast.unparse, given), "", ""]
    return Encoding(call, texts[0], texts[1])


def returned_to(
    place: Place, table: Encoding, function: ast.FunctionDef | ast.AsyncFunctionDef
) -> Encoding | None:
    """The table that a function of the program returns, as the statement of its call has it.

    None where the function reads its table besides, or the statement calls it several times.

    Args:
        place: the statement of the call.
        table: what the function makes.
        function: that function.
    """
    calls = calls_in(place.statement, function.name)
    if len(calls) != 1:
        return None
    (call,) = calls
    names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    names = names[names[:1] in (["self"], ["cls"]) :]
    given = dict(zip(names, map(ast.unparse, call.args), strict=False))
    given |= {one.arg: ast.unparse(one.value) for one in call.keywords if one.arg}
    index, classes = given.get(table.index, ""), given.get(table.classes, "")
    return replace(table, made=call, filling=None, index=index, classes=classes)


def reads_besides(place: Place, names: Collection[str], apart: Sequence[ast.AST]) -> list[ast.Name]:
    """The reads of some variables in a function, but for those within some of its nodes."""
    within = {id(node) for one in apart for node in ast.walk(one)}
    return [
        node
        for node in ast.walk(place.scope)
        if isinstance(node, ast.Name)
        and node.id in names
        and isinstance(node.ctx, ast.Load)
        and id(node) not in within
    ]


def is_returned(place: Place, table: Encoding) -> bool:
    """Whether all that a function does with a table that a statement makes is to return it."""
    statement = place.statement
    if isinstance(statement, ast.Return):
        return without_casts(statement.value) is table.made
    names = [one.id for one in bound_names(statement) if isinstance(one, ast.Name)]
    reads = reads_besides(place, names, [table.filling] if table.filling is not None else [])
    returned = [
        id(without_casts(node.value))
        for node in ast.walk(place.scope)
        if isinstance(node, ast.Return)
    ]
    is_whole = isinstance(statement, ast.Assign) and without_casts(statement.value) is table.made
    return is_whole and len(reads) == 1 and id(reads[0]) in returned


def _taken_or_compared(place: Place) -> Iterator[Encoding]:
    """``torch.eye(n)[y]``, ``torch.eye(n).index_select(0, y)``, ``y[:, None] == torch.arange(n)``.

    The identity matrix and the classes may be bound to a name.
    """
    for node in ast.walk(place.statement):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            classes = _size_of(place, node.value, _IDENTITY)
            is_index = isinstance(node.slice, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
            if classes is not None and is_index:
                yield Encoding(node, ast.unparse(node.slice), classes, makes_more=True)
        elif isinstance(node, ast.Call) and called_name(node) == "index_select":
            receiver = node.func.value if isinstance(node.func, ast.Attribute) else None
            classes = _size_of(place, receiver, _IDENTITY)
            given = list(map(ast.unparse, node.args))
            if classes is not None and given[:1] == ["0"] and len(given) == _DIMENSIONS:
                yield Encoding(node, given[1], classes, makes_more=True)
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq):
            yield from _compared(place, node)


def _compared(place: Place, node: ast.Compare) -> Iterator[Encoding]:
    """The table that a comparison of indices with all classes makes."""
    sides = [node.left, *node.comparators]
    if len(sides) != _DIMENSIONS:
        return
    for index, counted in (sides, sides[::-1]):
        for dim in (0, 1):
            flat = _flat_expression(counted, 1 - dim)
            if dim == 0 and flat is None:
                continue  # a vector of classes lies along the last dimension
            classes = _size_of(place, flat if flat is not None else counted, _COUNTING)
            text = _flat(index, dim)
            if classes is not None and text:
                yield Encoding(node, text, classes, is_turned=dim == 0, makes_more=True)


def _size_of(place: Place, value: ast.expr | None, maker: str) -> str | None:
    """``n`` of ``torch.eye(n)`` or ``torch.arange(n)``, also of a name of it; None of others.

    Empty where it is not told by one argument.
    """
    value = without_casts(value)
    calls = [value]
    if isinstance(value, (ast.Name, ast.Attribute)):
        calls = [without_casts(one) for one in values_of(place, ast.unparse(value))]
    sizes: list[str] = []
    for call in calls:
        if not isinstance(call, ast.Call) or called_name(call) != maker:
            return None
        sizes.append(ast.unparse(call.args[0]) if len(call.args) == 1 else "")
    return (sizes[0] if len(set(sizes)) == 1 else "") if sizes else None


def _filled_later(place: Place) -> Encoding | None:
    """Zeros that a statement binds to a name, into which one other writes ones."""
    statement = place.statement
    zeros = without_casts(statement.value) if isinstance(statement, ast.Assign) else None
    names = [one.id for one in bound_names(statement) if isinstance(one, ast.Name)]
    if not isinstance(zeros, ast.Call) or called_name(zeros) not in _ZEROS or len(names) != 1:
        return None
    writing = list(_writes_of(place, zeros, names[0]))
    return writing[0] if len(writing) == 1 else None


def _writes_of(place: Place, zeros: ast.Call, name: str) -> Iterator[Encoding]:
    """What each statement behind writes into a table: by `scatter_`, or ``x[arange(n), i] = 1``."""
    for node in ast.walk(place.scope):
        if not isinstance(node, (ast.Expr, ast.Assign)) or node.lineno <= place.line:
            continue
        written = None
        if isinstance(node, ast.Expr) and called_name(node.value) == _IN_PLACE:
            assert isinstance(node.value, ast.Call)
            receiver = getattr(node.value.func, "value", None)
            is_own = isinstance(receiver, ast.Name) and receiver.id == name
            written = _written(zeros, node.value) if is_own else None
        for target, value in assigned(node):
            if isinstance(target, ast.Subscript) and ast.unparse(target.value) == name:
                written = _written_by_index(zeros, target.slice, value)
        if written is not None:
            yield Encoding(zeros, *written, filling=node)


def _written(zeros: ast.expr | None, call: ast.Call) -> tuple[str, str, bool] | None:
    """The index, the classes and the turn of ``zeros(n, c).scatter_(1, index[:, None], 1.0)``.

    None where there may be several ones in a row, or other values.
    """
    given = list(call.args)
    along = keyword(call, "dim") or (given.pop(0) if given else None)
    index = keyword(call, "index") or (given.pop(0) if given else None)
    value = keyword(call, "value") or keyword(call, "src") or (given.pop(0) if given else None)
    if given or along is None or index is None or not _is_one(value):
        return None
    dim = {"0": 0, "-2": 0, "1": 1, "-1": 1}.get(ast.unparse(along))
    sizes = _sizes(zeros)
    if dim is None or len(sizes) != _DIMENSIONS:
        return None
    flat = _flat(index, dim)
    return (flat, ast.unparse(sizes[dim]), dim == 0) if flat else None


def _written_by_index(
    zeros: ast.Call, index: ast.expr, value: ast.expr | None
) -> tuple[str, str, bool] | None:
    """The same of ``zeros[torch.arange(n), index] = 1.0``."""
    sizes, entries = _sizes(zeros), index.elts if isinstance(index, ast.Tuple) else []
    if len(sizes) != _DIMENSIONS or len(entries) != _DIMENSIONS or not _is_one(value):
        return None
    counted = [called_name(one) == "arange" for one in entries]
    if sum(counted) != 1:
        return None
    dim = counted.index(False)
    return ast.unparse(entries[dim]), ast.unparse(sizes[dim]), dim == 0


def _sizes(zeros: ast.expr | None) -> list[ast.expr]:
    if not isinstance(zeros, ast.Call) or called_name(zeros) not in _ZEROS:
        return []
    if called_name(zeros) == _LIKE and zeros.args:
        like = ast.unparse(zeros.args[0])
        return [_expression(f"{like}.size({dim})") for dim in range(_DIMENSIONS)]
    sizes = zeros.args
    if len(sizes) == 1 and isinstance(sizes[0], (ast.Tuple, ast.List)):
        sizes = sizes[0].elts
    return sizes


def _is_one(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value == 1


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _flat(index: ast.expr, at: int) -> str:
    """``i`` of ``i[:, None]``, ``i.unsqueeze(1)`` or ``i.view(-1, 1)``, of one more dimension.

    ``at`` is where it lies; empty for an index that may have several entries there.
    """
    flat = _flat_expression(index, at)
    return ast.unparse(flat) if flat is not None else ""


def _flat_expression(index: ast.expr, at: int) -> ast.expr | None:
    shapes = {0: (("1", "-1"),), 1: (("-1", "1"),)}
    subscripts = {0: ("None", "None, :"), 1: (":, None", "..., None")}
    if isinstance(index, ast.Subscript):
        text = ast.unparse(index.slice).strip("()")
        return index.value if text in subscripts[at] else None
    function = index.func if isinstance(index, ast.Call) else None
    if not isinstance(function, ast.Attribute) or not isinstance(index, ast.Call):
        return None
    given = tuple(map(ast.unparse, index.args))
    if function.attr == "unsqueeze":
        return function.value if given in ((str(at),), (str(at - 2),)) else None
    is_flat = function.attr in _RESHAPING and given in shapes[at]
    return function.value if is_flat else None
