"""dense-embedding-gradient: the gradient of a whole table, of which a step looks up few rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.trace import Category, Phase
from memprof.units import format_bytes, format_percent
from memprof.views.stacks import made_through
from memprof.views.window import Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.15
"""Of the peak, with all such gradients: a language model's table is a small part of it, and mostly
tied to its head."""
_MOST_LOOKED_UP = 0.1
"""Of the table's rows, in any step; of so many tables as a step makes gradients of one, as each
lookup has its own."""
_LAYER = "/torch/nn/modules/sparse.py"


@dataclass(frozen=True, slots=True, eq=False)
class DenseGradient(Match):
    """How much of the table is looked up."""

    looked_up: float = 0.0
    """Share of its bytes, in the step that looks up the most."""
    count: int = 1
    """Gradients at the peak."""


class DenseEmbeddingGradient(WasteRule[DenseGradient]):
    """`nn.Embedding(users, 64)` of millions of rows, of which a batch has a few hundred."""

    name = "dense-embedding-gradient"
    summary = "an embedding has a gradient for every row, and a step looks up few"
    fixes = ("sparse_gradient",)

    def matches(self, window: Window) -> Iterator[DenseGradient]:
        """All embeddings whose gradients are at the peak together, by what their calls return."""
        if window.peak.event < 0:
            return
        lives = window.lives
        looked_up = made_through(window, lambda frame: _LAYER in frame.filename.replace("\\", "/"))
        looked_up &= window.phase == Phase.FORWARD
        backward = window.phase == Phase.BACKWARD
        parameters = window.category == Category.PARAMETER
        sizes: dict[int, int] = {}
        for module in np.unique(window.module[looked_up]).tolist():
            of_gradients = lives.requested[backward & (window.module == module)]
            sizes[module] = int(of_gradients.max(initial=0))
        there: list[int] = []
        alike: list[int] = []
        tables: list[int] = []
        most = 0.0
        for module, size in sizes.items():
            of_gradient = backward & (window.module == module) & (lives.requested == size)
            at_peak = np.flatnonzero(of_gradient & window.at_peak)
            rows = np.flatnonzero(looked_up & (window.module == module))
            share = window.most_in_a_step(rows, lives.requested[rows]) / max(1, size)
            of_size = np.flatnonzero(parameters & (lives.requested == size))
            # A head, perhaps, whose gradient is dense, is as large.
            is_tied = len(of_size) > list(sizes.values()).count(size)
            made = window.made_in[of_gradient & (window.made_in >= 0)]
            lookups = int(np.bincount(made).max()) if len(made) else 1
            if not len(at_peak) or share > _MOST_LOOKED_UP * lookups or is_tied:
                continue
            most = max(most, share)
            there += at_peak.tolist()
            alike += np.flatnonzero(of_gradient).tolist()
            tables += of_size[lives.alloc[of_size] >= 0].tolist()
        rows = np.array(there, dtype=np.int64)
        nbytes = int(lives.size[rows].sum())
        if not there or window.share(nbytes) < _LEAST_SHARE:
            return
        yield DenseGradient(
            row=max(tables or there, key=lambda row: int(lives.size[row])),
            rows=rows,
            nbytes=nbytes,
            saving=window.replayed(window.whole(np.array(alike, dtype=np.int64))),
            looked_up=most,
            count=len(there),
        )

    def title(self, match: DenseGradient) -> str:
        """Say how little of the table is looked up."""
        share = format_percent(match.looked_up, 1.0)
        of = "the gradient of an embedding"
        if match.count > 1:
            of = f"{match.count} gradients of embeddings"
        return f"are {of}, of whose rows a step looks up {share} at most"

    def advice(self, match: DenseGradient, case: Case) -> Iterator[Advice]:
        """Have a gradient for the rows that were looked up."""
        why = (
            f"{format_bytes(match.nbytes)} are zeros for rows that no index names: with "
            "`sparse=True` the gradient has the rows that were looked up (for SGD, Adagrad and "
            "SparseAdam)."
        )
        yield Advice("sparse_gradient", why, case.site)


RULE = DenseEmbeddingGradient()
