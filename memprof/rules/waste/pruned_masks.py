"""pruned-masks: weights are pruned, and served with their masks and their old values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.pruning_chains import (
    IN_TURN,
    is_made_permanent,
    pruned_at,
    prunings_in_chain,
)
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.trace import Category
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak."""
_FEWEST_TIMES = 3
"""Prunings of a weight, as a search came upon them."""
_FILE = "/torch/nn/utils/prune.py"
_LEARNING = (Category.GRADIENT, Category.OPTIMIZER_STATE)


@dataclass(frozen=True, slots=True, eq=False)
class Masks(Match):
    """Masks of pruned weights."""

    times: int = 0
    """Prunings of a weight, one upon the other, when its masks were searched for; 0 for one."""


class PrunedMasks(WasteRule[Masks]):
    """`prune.l1_unstructured(layer, "weight", 0.6)`, and a server that never trains."""

    name = "pruned-masks"
    summary = "weights that are pruned keep their masks and their old values"
    fixes = ("remove_masks",)

    def matches(self, window: Window) -> Iterator[Masks]:
        """What torch's pruning made, of modules that nothing trains; or masks upon masks."""
        yield from _of_earlier_prunings(window)
        if is_made_permanent(window.programs):
            return
        lives = window.lives
        if np.isin(window.category, _LEARNING).any():
            return  # the masks hold at zero what was pruned
        is_of_pruning = np.array(
            [
                any(frame.filename.replace("\\", "/").endswith(_FILE) for frame in stack)
                for stack in map(window.trace.stack, range(len(window.trace.tables.stacks)))
            ],
            dtype=bool,
        )
        own = is_of_pruning[lives.stack]
        there = np.flatnonzero(own & window.at_peak)
        nbytes = int(lives.size[there].sum())
        if not len(there) or window.share(nbytes) < _LEAST_SHARE:
            return
        yield Masks(
            row=int(there[np.argmax(lives.size[there])]),
            rows=there,
            nbytes=nbytes,
            saving=window.replayed(window.whole(np.flatnonzero(own))),
        )

    def title(self, match: Masks) -> str:
        """Say what they are."""
        if match.times:
            return f"are masks of weights that were pruned {match.times} times or more, in turn"
        return "are masks of pruned weights, and weights that are made of them in each call"

    def advice(self, match: Masks, case: Case) -> Iterator[Advice]:
        """Make the pruning permanent."""
        if match.times:
            why = (
                f"{format_bytes(match.nbytes)} are masks of all prunings, though the last has all "
                "that those before it left out: make one permanent before the next."
            )
            yield Advice("remove_masks", why, pruned_at(case.everywhere), typed=IN_TURN)
            return
        why = (
            f"{format_bytes(match.nbytes)} are there for weights that may be trained on. Nothing "
            "trains these: `prune.remove` leaves the pruned weights, and drops the masks."
        )
        yield Advice("remove_masks", why, case.site, typed='prune.remove(module, "weight")')


def _of_earlier_prunings(window: Window) -> Iterator[Masks]:
    """Masks that torch's container of pruning methods has, all but those of the last pruning."""
    lives = window.lives
    times = 0
    stacks: list[int] = []
    for search in window.searches:
        of_search = max(map(prunings_in_chain, search.holders[:1]), default=0)
        if of_search >= _FEWEST_TIMES:
            times, stacks = max(times, of_search), [*stacks, search.stack]
    own = np.flatnonzero(np.isin(lives.stack, stacks) & ~window.has_owner & window.stays)
    there = own[window.at_peak[own]]
    nbytes = int(lives.size[there].sum())
    if len(there) and window.share(nbytes) >= _LEAST_SHARE:
        earlier = own[window.made_in[own] < window.made_in[own].max()]
        saving = window.replayed(window.whole(earlier))
        yield Masks(int(there[-1]), there, nbytes, saving, times=times)


RULE = PrunedMasks()
