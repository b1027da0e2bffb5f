"""ranked-by-sorting: whole rows are sorted to know the rank of one value in each."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.large_tensor import large_tensor
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import place_of
from memprof.source_code.ranks import Ranking, ranking
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]


@dataclass(frozen=True, slots=True, eq=False)
class RankedBySorting(Match):
    """What is sorted."""

    ranking: Ranking | None = None


class RankedBySortingRule(WasteRule[RankedBySorting]):
    """`scores.argsort(1, descending=True).argsort(1).gather(1, target)`."""

    name = "ranked-by-sorting"
    summary = "whole rows are sorted to know the rank of one value in each"
    fixes = ("count_larger",)

    def matches(self, window: Window) -> Iterator[RankedBySorting]:
        """The large tensor of the peak, or one of its size, made by a sort whose order is ranks."""
        large = large_tensor(window)
        if large is None:
            return
        places = [place_of(window.frame_of(int(row))) for row in large.there]
        found = next((one for at in places if at is not None and (one := ranking(at))), None)
        if found is None:
            return
        lines = {(at.program.filename, line) for at in found.places for line in at.lines}
        frames = window.owners.sites.frames
        is_sorted = np.array([(one.filename, one.line) in lines for one in frames], dtype=bool)
        made = is_sorted[window.site] & ~window.has_owner
        rows = np.flatnonzero(made & window.at_peak)
        if not len(rows):
            return
        yield RankedBySorting(
            row=int(rows[window.lives.size[rows].argmax()]),
            rows=rows,
            nbytes=int(window.lives.size[rows].sum()),
            saving=window.replayed(window.whole(np.flatnonzero(made))),
            ranking=found,
        )

    def title(self, match: RankedBySorting) -> str:  # noqa: ARG002 - every match reads the same
        """Say what they are there for."""
        return "are sorted rows, of which ranks alone are read"

    def advice(self, match: RankedBySorting, case: Case) -> Iterator[Advice]:
        """Count what is larger."""
        assert match.ranking is not None
        values = ast.unparse(match.ranking.values)
        descending = match.ranking.is_descending
        sign = "<" if descending is False else ">"
        which = {False: "smaller", True: "larger", None: "larger (or smaller)"}[descending]
        why = (
            f"{format_bytes(match.nbytes)} are there to know the rank of one value in each row: "
            f"that is how many of the row are {which}, which `({values} {sign} own).sum(1)` counts "
            "without sorting anything. (Of equal values a sort puts some first.)"
        )
        yield Advice("count_larger", why, case.site, typed=_count(match.ranking, values, sign))


def _count(found: Ranking, values: str, sign: str) -> str:
    """The count as code, where it is known which of a row is asked for."""
    given = found.taken.args[-2:] if found.taken is not None else []
    if found.is_descending is None or len(given) != len(("dim", "index")):
        return ""
    dim, index = map(ast.unparse, given)
    return f"({values} {sign} {values}.gather({dim}, {index})).sum({dim}, keepdim=True)"


RULE = RankedBySortingRule()
