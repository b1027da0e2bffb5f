"""large-buffer: a module's forward reads a slice of a buffer that makes much of the peak."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.registered_buffers import (
    buffers_made_by,
    large_buffers,
    registered_name,
    unread_buffer,
)
from memprof.rules.rule import EVERY_OTHER, Advice, Match, WasteRule
from memprof.source_code.program import (
    Place,
    Program,
    calls_in,
    place_of,
)
from memprof.source_code.size_statement import size_statement
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]


_OF_SHAPE = frozenset(("device", "dtype", "ndim", "shape", "size"))


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
        place = place_of(window.frame_of(row))
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
    calls = calls_in(place.program.tree, "register_buffer")
    names = own or [name for call in calls if (name := registered_name(call))]
    return any(_is_read_by_slices(programs, name) for name in names)


def _is_read_by_slices(programs: Sequence[Program], name: str) -> bool:
    """Whether slices are read of an attribute, and never all of it."""
    slices = 0
    for program in programs:
        above = {child: node for node in program.nodes for child in ast.iter_child_nodes(node)}
        for node in program.nodes:
            is_it = isinstance(node, ast.Attribute) and node.attr == name
            if not is_it or not isinstance(node.ctx, ast.Load):  # type: ignore[attr-defined]
                continue
            parent = above.get(node)
            if isinstance(parent, ast.Attribute) and parent.attr in _OF_SHAPE:
                continue
            if isinstance(parent, ast.Call) and parent.func is node:
                continue  # ``torch.tril(…)``, where the buffer is ``self.tril``
            if isinstance(parent, ast.Attribute) and parent.attr == "narrow":
                slices += 1  # ``self.cos.narrow(0, 0, length)``
                continue
            if not isinstance(parent, ast.Subscript) or parent.value is not node:
                return False
            method = above.get(parent)
            is_written = isinstance(method, ast.Attribute) and method.attr.endswith("_")
            if is_written or not isinstance(parent.ctx, ast.Load):
                continue  # ``self.queue[at : at + n].copy_(keys)``
            slices += any(isinstance(one, ast.Slice) for one in ast.walk(parent.slice))
    return slices > 0


RULE = LargeBuffer()
