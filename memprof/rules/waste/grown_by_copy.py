"""grown-by-copy: a tensor is enlarged by copying it, so that old and new are there at once."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from memprof.rules.case import Case
from memprof.rules.large_tensor import large_tensor, made_on_its_line
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.idioms import enlarged_copy
from memprof.source_code.program import Place, called_name
from memprof.source_code.verbs import JOINING
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]

_LEAST_FACTOR = 1.5
"""Of a copy's size to that of the tensor it was copied from: parts of one size that are added one
by one soon are less."""
_SOON = 4
"""Events after a copy is made, by which the statement has let go of what it copied."""


class GrownByCopy(WasteRule[Match]):
    """`x = torch.cat((x, new))`: each time, the new tensor is made beside the old one."""

    name = "grown-by-copy"
    summary = "a tensor is enlarged by copying it into a larger one"
    fixes = ("preallocate", "cpu_offload")

    def matches(self, window: Window) -> Iterator[Match]:
        """The large tensor of the peak, made by a statement that replaces one by a larger copy."""
        large = large_tensor(window)
        if large is None or large.place is None or not enlarged_copy(large.place.statement):
            return
        copies = made_on_its_line(window, large.row)
        lasting = copies[window.lives.free[copies] > window.lives.alloc[copies] + _SOON]
        if len(lasting) and all(_is_by_factor(window, int(row)) for row in lasting):
            return  # few copies, of a room that is kept large enough
        if _keeps_the_last(large.place):
            return  # a queue that is as long as it is meant to be, soon
        yield Match(
            row=large.row,
            rows=large.there,
            nbytes=large.nbytes,
            saving=window.replayed(window.whole(copies)),
        )

    def title(self, match: Match) -> str:  # noqa: ARG002 - every match reads the same
        """Say what happens to them."""
        return "are copied into a larger tensor again and again"

    def advice(self, match: Match, case: Case) -> Iterator[Advice]:
        """Allocate the final size, or collect elsewhere."""
        why = f"Old and new copy are there at once, {format_bytes(match.nbytes)}"
        yield Advice("preallocate", f"{why}: allocate once and fill.", case.site)
        yield Advice("cpu_offload", f"{why}: collect the parts on the host.", case.site)


def _keeps_the_last(place: Place) -> bool:
    """Whether a statement keeps so many of the joined rows at most: ``cat((x, new))[-n:]``."""
    return any(
        isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Call)
        and called_name(node.value) in JOINING
        and isinstance(node.slice, ast.Slice)
        and isinstance(node.slice.lower, ast.UnaryOp)
        for node in ast.walk(place.statement)
    )


def _is_by_factor(window: Window, row: int) -> bool:
    """Whether a copy is larger by a factor than all that is freed as soon as it is made."""
    made = window.lives.alloc[row]
    freed = (window.lives.free > made) & (window.lives.free <= made + _SOON)
    older = window.lives.requested[freed]
    return bool(older.size) and window.lives.requested[row] >= _LEAST_FACTOR * older.max()


RULE = GrownByCopy()
