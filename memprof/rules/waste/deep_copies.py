"""deep-copies: objects are copied with the data that they refer to."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.copied_objects import copied_source, made_by_copying, sized_as_models
from memprof.rules.lifespan import stays_near_peak
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import Place, assigned, place_of
from memprof.trace import Category
from memprof.units import format_bytes
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.2
"""Of the peak, in all copies."""
_FEWEST = 3
"""Of one size: one copy may well be meant."""


@dataclass(frozen=True, slots=True, eq=False)
class DeepCopies(Match):
    """What is copied."""

    source: str = ""
    is_best: bool = False
    """It is the best so far of what goes on to be trained."""


class DeepCopiesRule(WasteRule[DeepCopies]):
    """`child = copy.deepcopy(config)` of a configuration that has the data set, for each member."""

    name = "deep-copies"
    summary = "objects are copied with the data that they refer to"
    fixes = ("store_once",)

    def matches(self, window: Window) -> Iterator[DeepCopies]:
        """Several that a deep copy made in one size and that stay, beside what they are made of."""
        lives = window.lives
        staying = stays_near_peak(window) & window.at_peak
        staying &= ~sized_as_models(window)
        by_copying = made_by_copying(window) & ~window.has_owner
        copied = staying & by_copying
        for site in window.large_sites(copied, _LEAST_SHARE):
            place = place_of(window.owners.sites.frames[site])
            source = copied_source(place) if place is not None else ""
            rows = _of_one_size(window, np.flatnonzero(copied & (window.site == site)))
            if not source or not len(rows):
                continue
            size = lives.requested[rows[0]]
            if not (staying & ~copied & (lives.requested == size)).any():
                continue  # what they were copied from is gone: there may be one for each
            every = by_copying & (window.site == site) & (lives.requested == size)
            there = np.flatnonzero(every & window.at_peak)
            yield DeepCopies(
                row=int(rows[0]),
                rows=there,
                nbytes=int(lives.size[there].sum()),
                saving=window.replayed(window.whole(np.flatnonzero(every))),
                source=source,
            )
            return
        yield from _of_the_best(window, by_copying, staying & ~copied)

    def title(self, match: DeepCopies) -> str:
        """Say how many there are."""
        if match.is_best:
            return f"are copies of what `{match.source}` refers to besides its weights"
        return f"are {len(match.rows)} copies of a tensor that `{match.source}` refers to"

    def advice(self, match: DeepCopies, case: Case) -> Iterator[Advice]:
        """Copy the object alone, or the weights that it has."""
        if match.is_best:
            why = (
                f"`deepcopy` copies all that the best `{match.source}` refers to: "
                f"{format_bytes(match.nbytes)} are no weights. Copy its model alone, or the "
                "`state_dict()` of that, and load it where the best is asked for."
            )
            yield Advice("store_once", why, case.site)
            return
        why = (
            f"`deepcopy` copies all that `{match.source}` refers to, {format_bytes(match.nbytes)} "
            "of tensors that are there already: where nothing writes to them, copy the object "
            f"alone (`copy.copy({match.source})`), or keep the data out of it."
        )
        yield Advice("store_once", why, case.site, typed=f"copy.copy({match.source})")


def _of_the_best(window: Window, by_copying: Bools, others: Bools) -> Iterator[DeepCopies]:
    """What a copy of the best so far has besides weights, where the same is there once more.

    `if score > best: best, kept = score, copy.deepcopy(agent)`, of an agent with its replay memory.
    """
    lives = window.lives
    copied = by_copying & ~window.has_owner
    copied &= np.isin(lives.requested, np.unique(lives.requested[others & ~window.has_owner]))
    weights = np.unique(lives.requested[window.category == Category.PARAMETER])
    for site in window.large_sites(copied & window.at_peak, _LEAST_SHARE):
        place = place_of(window.owners.sites.frames[site])
        source = copied_source(place) if place is not None and _is_of_the_best(place) else ""
        of_site = by_copying & (window.site == site)
        # The copied model may not have been called yet: then its weights are known by their sizes.
        if not source or (of_site & np.isin(lives.requested, weights)).sum() < _FEWEST:
            continue
        every = np.flatnonzero(copied & of_site)
        there = every[window.at_peak[every]]
        yield DeepCopies(
            row=int(there[lives.size[there].argmax()]),
            rows=there,
            nbytes=int(lives.size[there].sum()),
            saving=window.replayed(window.whole(every)),
            source=source,
            is_best=True,
        )
        return


def _is_of_the_best(place: Place) -> bool:
    """Whether a statement stands under ``if score > best``, with ``best = score`` beside it."""
    for around in place.around:
        test = around.test if isinstance(around, ast.If) else None
        if not isinstance(around, ast.If) or not isinstance(test, ast.Compare):
            continue
        sides = {ast.unparse(one) for one in (test.left, *test.comparators)}
        for node in ast.walk(around):
            for target, value in assigned(node):
                text = ast.unparse(value) if value is not None else ""
                if {ast.unparse(target), text} == sides:
                    return True
    return False


def _of_one_size(window: Window, rows: Ints) -> Ints:
    """Those of the size that most bytes are of; none where there are fewer than a few."""
    sizes, counts = np.unique(window.lives.requested[rows], return_counts=True)
    if not len(sizes):
        return rows
    most = int(np.argmax(sizes * counts))
    alike: Ints = rows[window.lives.requested[rows] == sizes[most]]
    return alike if len(alike) >= _FEWEST else alike[:0]


RULE = DeepCopiesRule()
