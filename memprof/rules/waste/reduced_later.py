"""reduced-later: results are collected and joined, and then only reduced."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.joined_tensors import FEWEST_PARTS, all_joined, joined_at_peak, parts_of
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.program import place_of
from memprof.source_code.reductions import Reduced, Reduction, reduction_of
from memprof.units import format_bytes
from memprof.views.peak_without import Cuts, Saving
from memprof.views.window import Ints, Window

__all__ = ["RULE"]


@dataclass(frozen=True, slots=True, eq=False)
class ReducedLater(Match):
    """What is read of the joined tensor."""

    reduction: Reduction | None = None
    remains: float = 0.0
    """Share of the bytes that the reduced parts take."""
    of_library: bool = False
    """A library makes the parts, and keeps them as it likes."""


class ReducedLaterResults(WasteRule[ReducedLater]):
    """`torch.stack(samples)` of thirty passes, of which only the mean and the variance are read."""

    name = "reduced-later"
    summary = "results are collected and joined, and then only reduced"
    fixes = ("reduce_predictions", "running_total")
    yields_to = ("loaded",)
    accumulates = True

    def matches(self, window: Window) -> Iterator[ReducedLater]:
        """A joined tensor at the peak that its function does nothing with but to reduce it."""
        lives = window.lives
        for row in joined_at_peak(window):
            parts = parts_of(window, row)
            place = place_of(window.frame_of(row))
            reduction = reduction_of(place) if place is not None else None
            if reduction is None or len(parts) < FEWEST_PARTS:
                continue
            results, every = all_joined(window, row)
            of_library = _is_of_library(window, int(parts[0]))
            there = np.append(parts[window.at_peak[parts]], row)
            nbytes = int(lives.size[there].sum())
            yield ReducedLater(
                row=row,
                rows=there,
                nbytes=nbytes,
                saving=_saving(window, results, every[:0] if of_library else every),
                reduction=reduction,
                of_library=of_library,
                remains=_reduced_bytes(window, row, reduction) / nbytes,
            )
            return

    def title(self, match: ReducedLater) -> str:
        """Say how many there are, and what is read of them."""
        assert match.reduction is not None
        number = len(match.rows) - 1
        parts = f"{number} results and the tensor joined from them" if number else "joined results"
        return f"are {parts}, of which only {_what_is_read(match.reduction)} read"

    def advice(self, match: ReducedLater, case: Case) -> Iterator[Advice]:
        """Reduce each part before it is kept, or add up what is needed."""
        assert match.reduction is not None
        read, nbytes = _what_is_read(match.reduction), format_bytes(match.nbytes)
        if match.reduction.along is Reduced.EACH_PART:
            take = "one after the other" if match.of_library else "before it is kept"
            why = (
                f"{nbytes} are collected, and then only {read} read, which each result gives "
                f"by itself: take that {take}."
            )
            yield Advice("reduce_predictions", why, case.site, remains=match.remains)
            return
        why = (
            f"{nbytes} are collected, and then only {read} read: add up what that needs as "
            "the results come (their sum and number; for a variance, the sum of squares, too)"
        )
        why += ", and keep what each gives by itself." if match.reduction.lines else "."
        yield Advice("running_total", why, case.site, remains=match.remains)


def _is_of_library(window: Window, row: int) -> bool:
    """Whether a library that the program calls made a tensor, and so keeps it as it likes."""
    kinds = (frame_kind(frame.filename) for frame in window.stack(row))
    return next((kind for kind in kinds if kind is not FrameKind.TORCH), None) is FrameKind.LIBRARY


def _what_is_read(reduction: Reduction) -> str:
    """The reductions with their verb: ``x.mean(0)` and `x.var(0)` are``."""
    texts = [f"`{text}`" for text in reduction.texts]
    return f"{' and '.join(texts)} {'is' if len(texts) == 1 else 'are'}"


def _saving(window: Window, results: Ints, parts: Ints) -> Saving:
    """The peak with no joined tensor, nothing that its line makes of it, and one part at a time."""
    lives = window.lives
    joined = np.unique(results)
    of_line = (window.site == window.site[joined[0]]) & (lives.alloc > lives.alloc[joined[0]])
    of_line &= lives.requested == lives.requested[joined[0]]
    whole = window.whole(np.union1d(joined, np.flatnonzero(of_line)))
    short = window.ended_at(parts, lives.alloc[parts] + 1)
    cuts = Cuts(
        np.concatenate([whole.rows, short.rows]),
        np.concatenate([whole.start, short.start]),
        np.concatenate([whole.end, short.end]),
    )
    return window.replayed(cuts)


def _reduced_bytes(window: Window, row: int, reduction: Reduction) -> int:
    """What remains of reductions within each part: the largest that each line makes."""
    filename, lives = window.frame_of(row).filename, window.lives
    nbytes = 0
    for line in reduction.lines:
        sites = [
            number
            for number, frame in enumerate(window.owners.sites.frames)
            if (frame.filename, frame.line) == (filename, line)
        ]
        made = np.isin(window.site, sites) & (lives.alloc > lives.alloc[row])
        made &= lives.size < lives.size[row]
        nbytes += int(lives.size[made].max(initial=0))
    return nbytes


RULE = ReducedLaterResults()
