"""One-hot tables that a statement makes: by `one_hot`, or by zeros into which ones are written."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from memprof.source_code.idioms import keyword, without_casts
from memprof.source_code.program import Place, assigned, bound_names, called_name, calls_in

__all__ = ["Encoding", "encodings"]

_MAKER = "one_hot"
_ZEROS = frozenset(("new_zeros", "zeros"))
_IN_PLACE, _WRITING = "scatter_", ("scatter", "scatter_")
_RESHAPING = frozenset(("reshape", "view"))
_DIMENSIONS = 2
_ARGUMENTS = 3
"""Of `scatter_`: the dimension, the indices and the value."""


@dataclass(frozen=True, slots=True, eq=False)
class Encoding:
    """Such a table."""

    made: ast.Call
    """The expression that is the table, or the zeros that become it."""
    index: str
    """The class of each row, as it is written; empty where that is not known."""
    classes: str
    """How many there are, likewise."""
    is_turned: bool = False
    """It has a column for each row of the data, and a row for each class."""
    filling: ast.stmt | None = None
    """The statement that writes the ones, where that is another one."""


def encodings(place: Place) -> list[Encoding]:
    """The one-hot tables that a statement makes, in order of lines."""
    tables = [_by_function(call) for call in calls_in(place.statement, _MAKER)]
    for call in calls_in(place.statement, *_WRITING):
        zeros = without_casts(call.func.value) if isinstance(call.func, ast.Attribute) else None
        written = _written(zeros, call)
        if written is not None:
            tables.append(Encoding(call, *written))
    if not tables:
        filled = _filled_later(place)
        tables += [filled] if filled is not None else []
    return tables


def _by_function(call: ast.Call) -> Encoding:
    given = [*call.args, *(one.value for one in call.keywords)]
    texts = [*map(ast.unparse, given), "", ""]
    return Encoding(call, texts[0], texts[1])


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
    sizes = _sizes(zeros)
    given = [*call.args, *(one.value for one in call.keywords if one.arg in ("value", "src"))]
    along = keyword(call, "dim") or (given.pop(0) if given else None)
    if len(sizes) != _DIMENSIONS or len(given) != _ARGUMENTS - 1 or along is None:
        return None
    dim = {"0": 0, "-2": 0, "1": 1, "-1": 1}.get(ast.unparse(along))
    if dim is None or not _is_one(given[1]):
        return None
    index = _flat(given[0], dim)
    return (index, ast.unparse(sizes[dim]), dim == 0) if index else None


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
    sizes = zeros.args
    if len(sizes) == 1 and isinstance(sizes[0], (ast.Tuple, ast.List)):
        sizes = sizes[0].elts
    return sizes


def _is_one(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Constant) and value.value == 1


def _flat(index: ast.expr, at: int) -> str:
    """``i`` of ``i[:, None]``, ``i.unsqueeze(1)`` or ``i.view(-1, 1)``, of one more dimension.

    ``at`` is where it lies; empty for an index that may have several entries there.
    """
    shapes = {0: (("1", "-1"),), 1: (("-1", "1"),)}
    subscripts = {0: ("None", "None, :"), 1: (":, None", "..., None")}
    if isinstance(index, ast.Subscript):
        text = ast.unparse(index.slice).strip("()")
        return ast.unparse(index.value) if text in subscripts[at] else ""
    function = index.func if isinstance(index, ast.Call) else None
    if not isinstance(function, ast.Attribute) or not isinstance(index, ast.Call):
        return ""
    given = tuple(map(ast.unparse, index.args))
    if function.attr == "unsqueeze":
        return ast.unparse(function.value) if given in ((str(at),), (str(at - 2),)) else ""
    is_flat = function.attr in _RESHAPING and given in shapes[at]
    return ast.unparse(function.value) if is_flat else ""
