"""What is read of a value that a stack of calls returns: all of it, or one part that is written."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.program import FUNCTIONS, Place, source_of
from memprof.source_code.scopes import parameters
from memprof.trace import Frame

__all__ = ["PartRead", "part_read"]

_OF_SHAPE = frozenset(("device", "dtype", "ndim", "requires_grad", "shape", "size"))
"""Attributes and methods that read none of a tensor's values."""
_TO_KEEP = ("logits_to_keep", "num_logits_to_keep")
"""Parameters by which models of transformers are told for how many positions to compute logits."""


@dataclass(frozen=True, slots=True, eq=False)
class PartRead:
    """The one part of a value that is read."""

    place: Place
    """The statement that reads it."""
    text: str
    """As it is written there: ``logits[:, -1]``."""
    switch: str
    """The parameter of a function on the way that says how much is computed; empty without one."""


def part_read(stack: Sequence[Frame]) -> PartRead | None:
    """The only part that is read of what the innermost call of a stack returns.

    ``stack`` is innermost first. The value is followed from function to function: each has to
    return it as it is, or as a field of what it returns. None where it is read whole, where parts
    of several kinds are read, or where that cannot be told from the source.
    """
    field, switch = "", ""
    for frame in stack:
        kind = frame_kind(frame.filename)
        if kind is FrameKind.TORCH:
            continue  # a module's call passes on what its forward returns
        program = None if frame.changed else source_of(frame.filename)
        place = program.at(frame.line) if program is not None else None
        if place is None:
            return None
        if place.function is not None:
            names = set(parameters(place.function))
            switch = switch or next((one for one in _TO_KEEP if one in names), "")
        statement = place.statement
        if isinstance(statement, ast.Return):
            if _is_the_call(statement.value):
                continue
            return None
        name = _name_bound(statement)
        if not name:
            return None
        if _is_returned(place, name):
            continue
        in_field = _field_returned(place, name)
        if in_field and not field:
            field = in_field
            continue
        return _only_part(place, f"{name}.{field}" if field else name, switch)
    return None


def _name_bound(statement: ast.stmt) -> str:
    """``y`` of ``y = f(x)``; empty for other statements."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return ""
    (target,) = statement.targets
    return target.id if isinstance(target, ast.Name) and _is_the_call(statement.value) else ""


def _is_the_call(value: ast.expr | None) -> bool:
    """Whether an expression is a call, and no more: what runs within it returns its value."""
    return isinstance(value, ast.Call)


def _is_returned(place: Place, name: str) -> bool:
    """Whether the function around a statement returns a variable as it is, and does no more.

    What a library's function computes of it besides depends on arguments, as its loss does.
    """
    values = [node.value for node in _own_nodes(place.scope) if isinstance(node, ast.Return)]
    if not any(isinstance(value, ast.Name) and value.id == name for value in values):
        return False
    is_library = frame_kind(place.program.filename) is not FrameKind.USER
    return is_library or len(list(_loads(place, name))) == 1


def _field_returned(place: Place, name: str) -> str:
    """``logits`` of ``return Output(logits=logits)`` in a library's function; empty without one."""
    if frame_kind(place.program.filename) is FrameKind.USER:
        return ""
    for node in _own_nodes(place.scope):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Call):
            for keyword in node.value.keywords:
                if isinstance(keyword.value, ast.Name) and keyword.value.id == name:
                    return keyword.arg or ""
    return ""


def _only_part(place: Place, value: str, switch: str) -> PartRead | None:
    """The part of a variable, or of its field, that every read of it in the function takes."""
    name, _, field = value.partition(".")
    parts: dict[str, ast.expr] = {}
    for load, parents in _loads(place, name):
        node_read: ast.expr = load
        parent = parents[-1]
        if field:
            if not isinstance(parent, ast.Attribute):
                return None
            if parent.attr != field:
                continue
            node_read, parent = parent, parents[-2]
        if isinstance(parent, ast.Attribute) and parent.attr in _OF_SHAPE:
            continue
        is_part = isinstance(parent, ast.Subscript) and parent.value is node_read
        if not is_part or not isinstance(parent, ast.Subscript) or not _is_one_part(parent.slice):
            return None
        parts.setdefault(ast.unparse(parent), parent)
    if len(parts) != 1:
        return None
    ((text, node),) = parts.items()
    reading = place.program.place(node)
    return PartRead(reading, text, switch) if reading is not None else None


def _is_one_part(index: ast.expr) -> bool:
    """Whether a subscript takes one place that it writes out, of a whole: ``[:, -1]``."""
    entries = index.elts if isinstance(index, ast.Tuple) else [index]
    places = [one for one in entries if not _is_whole(one)]
    return len(places) == 1 and len(entries) > 1 and _is_number(places[0])


def _is_whole(entry: ast.expr) -> bool:
    """Whether an entry of a subscript takes all: ``:``, ``...``."""
    if isinstance(entry, ast.Slice):
        return entry.lower is None and entry.upper is None and entry.step is None
    return isinstance(entry, ast.Constant) and entry.value is ...


def _is_number(entry: ast.expr) -> bool:
    """Whether an entry is a number that is written out, or the last few places: ``-1:``."""
    if isinstance(entry, ast.Slice):
        return entry.upper is None and isinstance(entry.lower, ast.UnaryOp)
    if isinstance(entry, ast.UnaryOp):
        entry = entry.operand
    return isinstance(entry, ast.Constant) and type(entry.value) is int


def _loads(place: Place, name: str) -> Iterator[tuple[ast.expr, list[ast.AST]]]:
    """Where the function around a statement reads a variable, with the nodes around each read."""
    waiting: list[tuple[ast.AST, list[ast.AST]]] = [(place.scope, [])]
    while waiting:
        node, parents = waiting.pop()
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
            yield node, parents
        below = [*parents, node]
        waiting += [(child, below) for child in ast.iter_child_nodes(node)]


def _own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions within it."""
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (*FUNCTIONS, ast.Lambda, ast.ClassDef)):
            waiting += ast.iter_child_nodes(node)
