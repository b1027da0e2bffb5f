"""pruned-masks: weights are pruned, and served with their masks and their old values."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import Place, calls_in
from memprof.source_code.scopes import qualified_name
from memprof.trace import Category
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak."""
_MODULE = "torch.nn.utils.prune."
_FILE = "/torch/nn/utils/prune.py"
_REMOVE = "remove"
_LEARNING = (Category.GRADIENT, Category.OPTIMIZER_STATE)


class PrunedMasks(WasteRule[Match]):
    """`prune.l1_unstructured(layer, "weight", 0.6)`, and a server that never trains."""

    name = "pruned-masks"
    summary = "weights that are pruned keep their masks and their old values"
    fixes = ("remove_masks",)

    def matches(self, window: Window) -> Iterator[Match]:
        """What torch's pruning made, of modules that nothing trains."""
        place = _prunes(window)
        if place is None:
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
        yield Match(
            row=int(there[np.argmax(lives.size[there])]),
            rows=there,
            nbytes=nbytes,
            saving=window.replayed(window.whole(np.flatnonzero(own))),
        )

    def title(self, match: Match) -> str:  # noqa: ARG002 - every match reads the same
        """Say what they are."""
        return "are masks of pruned weights, and weights that are made of them in each call"

    def advice(self, match: Match, case: Case) -> Iterator[Advice]:
        """Make the pruning permanent."""
        why = (
            f"{format_bytes(match.nbytes)} are there for weights that may be trained on. Nothing "
            "trains these: `prune.remove` leaves the pruned weights, and drops the masks."
        )
        yield Advice("remove_masks", why, case.site, typed='prune.remove(module, "weight")')


def _prunes(window: Window) -> Place | None:
    """The first statement of the program that prunes, where none removes the masks again."""
    first: Place | None = None
    for program in window.programs:
        for call in calls_in(program.tree):
            place = program.place(call)
            name = qualified_name(place, call.func) if place is not None else ""
            if not name.startswith(_MODULE):
                continue
            if name == f"{_MODULE}{_REMOVE}":
                return None
            first = first or place
    return first


RULE = PrunedMasks()
