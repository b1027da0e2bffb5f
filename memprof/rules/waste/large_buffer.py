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
    """Whether the program reads ``self.name[:…]`` of a buffer that a statement makes.

    Where the statement registers none (it moves the whole model), of any that its file registers.
    """
    calls = calls_in(place.program.tree, "register_buffer")
    names = set(buffers_made_by(place)) or {registered_name(call) for call in calls}
    return any(
        isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Load)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr in names
        and any(isinstance(one, ast.Slice) for one in ast.walk(node.slice))
        for program in programs
        for node in ast.walk(program.tree)
    )


RULE = LargeBuffer()
