"""large-buffer: a module's forward reads a slice of a buffer that makes much of the peak."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from memprof.rules.case import Case
from memprof.rules.registered_buffers import (
    buffers_made_by,
    large_buffers,
    registering_place,
    registrations,
    unread_buffer,
)
from memprof.rules.rule import EVERY_OTHER, Advice, Match, WasteRule
from memprof.source_code.program import (
    Place,
    Program,
    assigned,
    called_name,
)
from memprof.source_code.scopes import nodes_around, parameters, reads_of
from memprof.source_code.size_statement import size_statement
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]


_OF_SHAPE = frozenset(("device", "dtype", "ndim", "shape", "size"))
_CONVERTING = frozenset(("bool", "float", "half", "to", "type_as"))
"""Methods whose result has all values of a tensor, in its shape."""
_DEEPEST = 3
"""Names by which a buffer is handed on."""


@dataclass(frozen=True, slots=True, eq=False)
class SlicedBuffer(Match):
    """Buffers, and whose they are."""

    module: str = ""
    """The module that has the largest of them."""


class LargeBuffer(WasteRule[SlicedBuffer]):
    """A causal mask or a table of positions for the longest input that anyone thought of."""

    name = "large-buffer"
    summary = "a slice is read of a buffer that makes much of the peak"
    fixes = ("right_size",)
    yields_to = EVERY_OTHER  # that a slice is read does not say how large a slice

    def matches(self, window: Window) -> Iterator[SlicedBuffer]:
        """Buffers that make much of the peak, where the class that makes them reads a slice."""
        large = large_buffers(window)
        if not large.any():
            return
        row = window.main_site(large)
        place = registering_place(window, row)
        if place is None or unread_buffer(window.programs, place):
            return
        if not _reads_slice(window.programs, place):
            return
        yield SlicedBuffer(
            row=row,
            rows=np.flatnonzero(large),
            nbytes=window.bytes_of(large),
            module=window.module_name(row),
        )

    def title(self, match: SlicedBuffer) -> str:
        """Name the module."""
        return f"are buffers of `{match.module}`, of which a slice is read"

    def advice(self, match: SlicedBuffer, case: Case) -> Iterator[Advice]:
        """Make it as large as what is read, where its size is set."""
        yield Advice(
            "right_size",
            f"The buffer takes {format_bytes(match.nbytes)}, and forward reads a slice of it: "
            "make it as long as the longest input, or grow it when one is longer.",
            size_statement(case.site) or case.site,
        )


def _reads_slice(programs: Sequence[Program], place: Place) -> bool:
    """Whether all that the program reads of a buffer that a statement makes is ``self.name[:…]``.

    Where the statement registers none (it moves the whole model), of one that its file registers.
    """
    own = buffers_made_by(place)
    every = registrations(place.program, place.program.tree)
    names = own or [one.name for one in every if one.name]
    return any(_is_read_by_slices(programs, name) for name in names)


def _is_read_by_slices(programs: Sequence[Program], name: str) -> bool:
    """Whether slices are read of an attribute, and never all of it."""
    reads = [
        read
        for program in programs
        for node in program.nodes
        if isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Load)
        for read in _reads_through(program, node, 0)
    ]
    return _Read.WHOLE not in reads and _Read.SLICE in reads


class _Read(Enum):
    """What a program reads of a buffer at a place."""

    WHOLE = 0
    SLICE = 1
    NOTHING = 2


def _reads_through(program: Program, node: ast.expr, depth: int) -> Iterator[_Read]:
    """What is read where a buffer is named, also by another name that it is given there."""
    place = program.place(node)
    around = nodes_around(place.statement, node) if place is not None else []
    while _is_conversion(around, node) and isinstance(around[-2], ast.expr):
        node, around = around[-2], around[:-2]  # ``self.mask.to(x.device)[:t]``
    parent = around[-1] if around else None
    if place is None or depth > _DEEPEST:
        yield _Read.WHOLE
    elif isinstance(parent, ast.Attribute):
        is_slice = parent.attr == "narrow"  # ``self.cos.narrow(0, 0, length)``
        read = _Read.SLICE if is_slice else _Read.WHOLE
        yield _Read.NOTHING if parent.attr in _OF_SHAPE else read
    elif isinstance(parent, ast.Call) and parent.func is node:
        yield _Read.NOTHING  # ``torch.tril(…)``, where the buffer is ``self.tril``
    elif isinstance(parent, ast.Subscript) and parent.value is node:
        yield _of_subscript(parent, around)
    else:
        yield from _by_other_name(place, node, around, depth)


def _is_conversion(around: list[ast.AST], node: ast.expr) -> bool:
    """Whether a method of a node is called that returns a tensor of its values and shape."""
    if len(around) < 2:
        return False
    call, method = around[-2:]
    if not isinstance(method, ast.Attribute) or method.value is not node:
        return False
    return isinstance(call, ast.Call) and call.func is method and method.attr in _CONVERTING


def _of_subscript(part: ast.Subscript, around: list[ast.AST]) -> _Read:
    method = around[-2] if len(around) > 1 else None
    is_written = isinstance(method, ast.Attribute) and method.attr.endswith("_")
    if is_written or not isinstance(part.ctx, ast.Load):
        return _Read.NOTHING  # ``self.queue[at : at + n].copy_(keys)``
    is_slice = any(isinstance(one, ast.Slice) for one in ast.walk(part.slice))
    return _Read.SLICE if is_slice else _Read.NOTHING


def _by_other_name(
    place: Place, node: ast.expr, around: list[ast.AST], depth: int
) -> Iterator[_Read]:
    """What is read of the variable, or of the parameter, that a buffer is handed to as it is."""
    parent = around[-1] if around else None
    names = [target for target, value in assigned(place.statement) if value is node]
    if names and all(isinstance(one, ast.Name) for one in names):
        scope, name = place.scope, ast.unparse(names[0])
    elif isinstance(parent, ast.Call):
        functions = place.program.functions(called_name(parent))
        given = list(parameters(functions[0])) if len(functions) == 1 else []
        given = given[int(given[:1] in (["self"], ["cls"])) :]
        at = next((n for n, one in enumerate(parent.args) if one is node), len(given))
        if at >= len(given):
            yield _Read.WHOLE
            return
        scope, name = functions[0], given[at]
    else:
        yield _Read.WHOLE
        return
    for load, _ in reads_of(scope, name):
        yield from _reads_through(place.program, load, depth + 1)


RULE = LargeBuffer()
