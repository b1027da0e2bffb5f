"""expanded-input: a module computes the same for each sample of a batch, of one input."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.large_tensor import is_in_module
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.expanded_inputs import expanded_input
from memprof.source_code.program import place_of
from memprof.trace import Frame
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.2
"""Of the peak."""


@dataclass(frozen=True, slots=True, eq=False)
class ExpandedInput(Match):
    """The call, and its input."""

    call: str = ""
    shown: str = ""


class ExpandedInputRule(WasteRule[ExpandedInput]):
    """`self.trunk(points.unsqueeze(0).expand(batch, -1, -1))`."""

    name = "expanded-input"
    summary = "a module computes the same for each sample of a batch, of one input"
    fixes = ("run_once",)

    def matches(self, window: Window) -> Iterator[ExpandedInput]:
        """What a line's module makes of an input that is shown several times."""
        lines = np.where(window.origin_site > 0, window.origin_site, window.site)
        mask = ~window.has_owner & ~window.stays & (lines > 0)
        there = mask & window.at_peak
        total = np.bincount(lines[there], weights=window.lives.size[there])
        for line in np.argsort(-total, kind="stable").tolist():
            if window.share(float(total[line])) < _LEAST_SHARE:
                return
            frame = window.owners.sites.frames[line]
            place = place_of(frame)
            found = expanded_input(place) if place is not None else None
            rows = np.flatnonzero(there & (lines == line))
            if found is None or not any(_is_of_module(window, frame, int(row)) for row in rows):
                continue
            call, shown = found
            yield ExpandedInput(
                row=int(rows[0]),
                rows=rows,
                nbytes=int(window.lives.size[rows].sum()),
                saving=window.replayed(window.whole(np.flatnonzero(mask & (lines == line)))),
                call=ast.unparse(call.func),
                shown=ast.unparse(shown),
            )
            return

    def title(self, match: ExpandedInput) -> str:
        """Say of what they are made."""
        return f"are what `{match.call}` makes of one input for each sample of a batch"

    def advice(self, match: ExpandedInput, case: Case) -> Iterator[Advice]:
        """Call it once."""
        yield Advice(
            "run_once",
            f"Each sample is given the same `{match.shown}`, and `{match.call}` makes "
            f"{format_bytes(match.nbytes)} of it, the same for each (`expand` takes no memory, "
            "but what is computed of it does): call it once, and let its result broadcast, or "
            "show that. (Unless it has dropout, which differs for each.)",
            case.site,
            typed=f"{match.call}({match.shown})",
        )


def _is_of_module(window: Window, line: Frame, row: int) -> bool:
    """Whether a module that the line calls made it, or the backward pass of that."""
    return is_in_module(line, window.origin_stack(row) or window.stack(row))


RULE = ExpandedInputRule()
