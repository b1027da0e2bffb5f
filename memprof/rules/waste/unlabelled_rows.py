"""unlabelled-rows: scores are computed for rows whose label the loss ignores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from memprof.rules.case import Case
from memprof.rules.large_tensor import large_tensor
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.trace import Phase
from memprof.units import format_bytes, format_percent
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_MOST_LABELLED = 0.5
"""Of the rows: with more of them there is little to be left out."""
_LEAST_ROW = 1024
"""Bytes of a row of scores: of few classes they are no large part of a model's results."""
_SHIFTED = 1.1
"""Times the scores that the loss was given: those of the last position may have been cut off."""


@dataclass(frozen=True, slots=True, eq=False)
class UnlabelledRows(Match):
    """How many of them there are."""

    rows_given: int = 0
    labelled: int = 0


class UnlabelledRowsRule(WasteRule[UnlabelledRows]):
    """`F.cross_entropy(logits, labels, ignore_index=0)` of a few masked items."""

    name = "unlabelled-rows"
    summary = "scores are computed for rows whose label the loss ignores"
    fixes = ("narrow_first",)
    yields_to = ("log-of-softmax", "one-hot", "padded-batches", "partly-read", "upcast")

    def matches(self, window: Window) -> Iterator[UnlabelledRows]:
        """The scores that a loss is given, with all that is computed of them row by row."""
        large = large_tensor(window)
        if large is None:
            return
        given = [
            one
            for record in window.labelled
            for one in zip(
                *(record.size, record.calls, record.rows, record.labelled, record.stack),
                strict=True,
            )
        ]
        sizes = window.lives.requested
        for size, calls, rows, labelled, stack in given:
            is_meant = rows > 0 and size <= sizes[large.row] <= _SHIFTED * size
            if not is_meant or labelled > _MOST_LABELLED * rows or size * calls < _LEAST_ROW * rows:
                continue
            alike = (sizes >= size) & (sizes <= _SHIFTED * size) & ~window.has_owner
            every = np.union1d(np.flatnonzero(alike), np.flatnonzero(large.in_every_step))
            there = every[window.at_peak[every]]
            of_loss = every[window.lives.stack[every] == stack]
            if not (len(there) and len(of_loss)):
                continue  # another tensor that happens to be as large
            row = int(every[np.argmax(window.made_in[every] == window.made_in[there].max())])
            yield UnlabelledRows(
                row=row,
                rows=there,
                nbytes=int(window.lives.size[there].sum()),
                saving=window.replayed(window.whole(every)),
                tentative=_is_by_library(window, row) or _are_read_besides(window, every, of_loss),
                rows_given=rows,
                labelled=labelled,
            )
            return

    def title(self, match: UnlabelledRows) -> str:
        """Say of how many rows they are, and how many count."""
        return (
            f"are scores of {match.rows_given:,} rows, of which the loss counts {match.labelled:,}"
        )

    def advice(self, match: UnlabelledRows, case: Case) -> Iterator[Advice]:
        """Leave the other rows out before the scores are computed."""
        ignored = format_percent(match.rows_given - match.labelled, match.rows_given)
        why = (
            f"{format_bytes(match.nbytes)} have a value of every class for every row, and the "
            f"loss ignores the label of {ignored} of them: "
            "select the rows that have a label before the layer that makes the scores "
            "(`hidden[labels != ignore_index]`), and their labels for the loss."
        )
        yield Advice("narrow_first", why, case.site, remains=match.labelled / match.rows_given)


def _are_read_besides(window: Window, every: Ints, of_loss: Ints) -> bool:
    """Whether another line computes as much, beside what made the scores and the loss of them.

    It may need all of the rows: a teacher's are compared with them, say.
    """
    forward = every[~np.isin(window.phase[every], (Phase.BACKWARD, Phase.OPTIMIZER))]
    own = {int(window.site[forward[0]]), *np.unique(window.site[of_loss]).tolist()}
    return not set(np.unique(window.site[forward]).tolist()) <= own


def _is_by_library(window: Window, row: int) -> bool:
    """Whether a library that the program calls makes the scores: no line of its own can."""
    kinds = (frame_kind(frame.filename) for frame in window.stack(row))
    own = takewhile(lambda kind: kind is not FrameKind.USER, kinds)
    return any(kind is FrameKind.LIBRARY for kind in own)


RULE = UnlabelledRowsRule()
