"""chained-pruning: weights are pruned again and again, and keep the mask of each time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memprof.rules.case import Case
from memprof.rules.pruning_chains import IN_TURN, pruned_at, prunings_in_chain
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.program import Place

__all__ = ["RULE"]


@dataclass(frozen=True, slots=True, eq=False)
class PrunedAgain(Cause):
    """How often, and where."""

    times: int
    place: Place | None


class ChainedPruning(GrowthRule[PrunedAgain]):
    """`prune.custom_from_mask(layer, "weight", mask)` every few steps."""

    name = "chained-pruning"
    summary = "weights are pruned again and again, and keep each mask"
    fixes = ("remove_masks",)
    precedes = (
        *("hook", "growing-container", "unbounded-dict", "collecting-object"),
        *("uncalled-release", "registered-callback", "parametrizations", "kept-attribute"),
    )

    def match(self, case: Case) -> PrunedAgain | None:
        """A chain of references through torch's container of pruning methods."""
        times = max(map(prunings_in_chain, case.finding.holders), default=0)
        return PrunedAgain(times, pruned_at(case.everywhere)) if times > 1 else None

    def advice(self, cause: PrunedAgain, case: Case) -> Iterator[Advice]:
        """Make a pruning permanent before the next."""
        yield Advice(
            "remove_masks",
            f"Each of {cause.times} prunings of a weight is kept with its mask, though the last "
            "has all that those before it left out: make one permanent before the next.",
            cause.place or case.site,
            typed=IN_TURN,
        )


RULE = ChainedPruning()
