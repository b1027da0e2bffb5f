"""discarded-precision: values are kept in float64, and made float32 before they are used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.trace import SURVIVOR_AGE
from memprof.units import format_bytes
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_OUTSIDE, _PROMOTED = 0, 1
"""Of `records.DoubleResults.origin`: what the program asked for itself is meant."""
_LEAST_TAKEN = 0.05
"""Of the data: so much is converted, where steps take batches out of it. A few numbers that are
made float32 say nothing of it."""
_LARGE = 4
"""The line that is told made the first tensor of at least such a part of the largest's bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class DiscardedPrecision(Match):
    """Results in double precision that nobody asked for."""

    promoted: bool = False
    """Data in float32 went in: something in float64 that it was combined with made them so."""


class DiscardedPrecisionRule(WasteRule[DiscardedPrecision]):
    """A table of NumPy's, which is float64, times audio in float32: all that follows is float64."""

    name = "discarded-precision"
    summary = "values are in float64 for a while, and float32 before and after"
    fixes = ("single_precision",)

    def matches(self, window: Window) -> Iterator[DiscardedPrecision]:
        """Results at the peak that are in double precision through NumPy's data alone.

        Only where it is given up: results of float32 are float32 again later, and of data that
        came so as much is converted as is there, or as steps take out of it.
        """
        narrowed = sum(one.narrowed_bytes for one in window.doubles)
        if not narrowed or window.peak.event < 0:
            return
        of_promotion, of_data = _rows(window, _PROMOTED), _rows(window, _OUTSIDE)
        there = of_data[window.at_peak[of_data]]
        lasting = window.freed_in[of_data] - window.made_in[of_data] >= SURVIVOR_AGE
        is_taken = ~lasting & ~np.isin(window.made_in[of_data], window.made_in[of_data[lasting]])
        taken_bytes = int(window.lives.size[of_data[is_taken]].sum())
        there_bytes = int(window.lives.size[there].sum())
        is_given_up = there_bytes <= narrowed
        is_given_up |= taken_bytes <= narrowed >= _LEAST_TAKEN * there_bytes
        rows = np.union1d(of_promotion, of_data) if is_given_up else of_promotion
        at_peak = rows[window.at_peak[rows]]
        if not len(at_peak):
            return
        sizes = window.lives.size[at_peak]
        large = at_peak[_LARGE * sizes >= sizes.max()]
        row = int(large[np.argmin(window.lives.alloc[large])])
        yield DiscardedPrecision(
            row=row,
            rows=at_peak,
            nbytes=int(sizes.sum()),
            saving=window.replayed(window.whole(rows), divisor=2),
            promoted=row in of_promotion,
        )

    def title(self, match: DiscardedPrecision) -> str:  # noqa: ARG002 - every match reads the same
        """Say how wide they are."""
        return "are in double precision, which is given up later"

    def advice(self, match: DiscardedPrecision, case: Case) -> Iterator[Advice]:
        """Convert what is in float64 where it comes from."""
        nbytes = format_bytes(match.nbytes)
        if match.promoted:
            why = (
                "Data in float32 meets some in float64 here, as NumPy's tables are, so the result "
                f"is float64, and float32 again later: of {nbytes} half is saved by `.float()` "
                "where the table is made."
            )
        else:
            why = (
                f"The data came in float64, as NumPy's does, and {nbytes} of it stay so until they "
                "are made float32 to be used: `.float()` when it is loaded takes half."
            )
        yield Advice("single_precision", why, case.site)


def _rows(window: Window, origin: int) -> Ints:
    """The lifetimes of one origin alone, told by their stack and size; none of a model."""
    known: dict[tuple[int, int], set[int]] = {}
    for record in window.doubles:
        columns = (record.stack, record.size, record.origin)
        for stack, size, reason in zip(*columns, strict=True):
            known.setdefault((stack, size), set()).add(reason)
    pairs = np.array([pair for pair, reasons in known.items() if reasons == {origin}], np.int64)
    lives = window.lives
    chosen = np.zeros(len(lives), dtype=bool)
    for stack, size in pairs.reshape(-1, 2).tolist():
        chosen |= (lives.stack == stack) & (lives.requested == size)
    return np.flatnonzero(chosen & ~window.has_owner)


RULE = DiscardedPrecisionRule()
