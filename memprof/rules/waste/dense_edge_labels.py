"""dense-edge-labels: every pair of nodes is scored, and compared with a matrix of few edges."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from memprof.rules.case import Case
from memprof.rules.large_tensor import LargeTensor, large_tensor
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.edge_labels import EdgeLabels, edge_labels_of
from memprof.source_code.program import place_of
from memprof.trace import Category
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]

_MANY_EDGES = 0.4
"""Of the matrix, that a table of its edges may take, see `dense_adjacency`."""

_OF_MODEL = (Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE)


class DenseEdgeLabels(WasteRule[Match]):
    """`binary_cross_entropy(sigmoid(z @ z.t()), adj)` of a graph with few edges."""

    name = "dense-edge-labels"
    summary = "every pair of nodes is scored, and compared with a matrix of few edges"
    fixes = ("sampled_pairs",)
    yields_to = ("dense-adjacency", "dense-detour")

    def matches(self, window: Window) -> Iterator[Match]:
        """The large tensors of a loss over all pairs."""
        large = large_tensor(window)
        if large is None:
            return
        for labels in edge_labels_of(window.programs):
            row = _row_of(window, large, labels)
            if row < 0 or _has_many_edges(window, large):
                continue
            # The matrix of edges has been there from the start, maybe as an input.
            alike = window.lives.size == window.lives.size[large.row]
            alike &= ~np.isin(window.category, _OF_MODEL)
            there = np.flatnonzero(alike & window.at_peak)
            yield Match(
                row=row,
                rows=there,
                nbytes=int(window.lives.size[there].sum()),
                saving=window.replayed(window.whole(np.flatnonzero(alike | large.in_every_step))),
            )
            return

    def title(self, match: Match) -> str:
        """Say how many there are."""
        count = len(match.rows)
        which = f"{count} tensors" if count > 1 else "one tensor"
        return f"are {which} of all pairs of nodes, of which few are edges"

    def advice(self, match: Match, case: Case) -> Iterator[Advice]:
        """Score the edges, and samples of what is none."""
        why = (
            f"{format_bytes(match.nbytes)} have a value for every two nodes. Score the edges and "
            "as many sampled pairs that are none: `(z[src] * z[dst]).sum(-1)` with "
            "`negative_sampling(edge_index)`, or `GAE.recon_loss`. Edges and other pairs weigh "
            "the same then, as by `pos_weight`."
        )
        yield Advice("sampled_pairs", why, case.site)


def _row_of(window: Window, large: LargeTensor, labels: EdgeLabels) -> int:
    """The first tensor of the loss; -1 where the large tensors come of something else."""
    rows = [
        row
        for row in large.there.tolist()
        if (place := place_of(window.frame_of(row))) is not None and labels.is_of(place)
    ]
    of_products = [row for row in rows if labels.multiplies(place_of(window.frame_of(row)))]
    return int(next(iter((*of_products, *rows)), -1))


def _has_many_edges(window: Window, large: LargeTensor) -> bool:
    """Whether something was there as the first was made that may be edges of most pairs."""
    sizes = window.lives.size
    there = window.lives.alive_at(int(window.lives.alloc[large.row]))
    there &= ~np.isin(window.category, _OF_MODEL) & (sizes != sizes[large.row])
    return bool((sizes[there] >= _MANY_EDGES * sizes[large.row]).any())


RULE = DenseEdgeLabels()
