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
"""Of the peak: a language model's table is a small part of it, and mostly tied to its head."""
_MOST_LOOKED_UP = 0.02
"""Of the table's rows, in any step."""
_LAYER = "/torch/nn/modules/sparse.py"


@dataclass(frozen=True, slots=True, eq=False)
class DenseGradient(Match):
    """How much of the table is looked up."""

    looked_up: float = 0.0
    """Share of its bytes, in the step that looks up the most."""


class DenseEmbeddingGradient(WasteRule[DenseGradient]):
    """`nn.Embedding(users, 64)` of millions of rows, of which a batch has a few hundred."""

    name = "dense-embedding-gradient"
    summary = "an embedding has a gradient for every row, and a step looks up few"
    fixes = ("sparse_gradient",)

    def matches(self, window: Window) -> Iterator[DenseGradient]:
        """Each embedding with a large gradient at the peak, by what its calls return."""
        if window.peak.event < 0:
            return
        lives = window.lives
        looked_up = made_through(window, lambda frame: _LAYER in frame.filename.replace("\\", "/"))
        looked_up &= window.phase == Phase.FORWARD
        backward = window.phase == Phase.BACKWARD
        parameters = window.category == Category.PARAMETER
        for module in np.unique(window.module[looked_up]).tolist():
            of_module = window.module == module
            there = backward & of_module & window.at_peak
            if not there.any():
                continue
            size = int(lives.requested[there].max())
            rows = np.flatnonzero(looked_up & of_module)
            share = window.most_in_a_step(rows, lives.requested[rows]) / size
            if share > _MOST_LOOKED_UP or window.share(size) < _LEAST_SHARE:
                continue
            tables = np.flatnonzero(parameters & (lives.requested == size))
            if len(tables) > 1:  # tied to a head, perhaps, whose gradient is dense
                continue
            alike = backward & of_module & (lives.requested == size)
            rows = np.flatnonzero(alike & window.at_peak)
            yield DenseGradient(
                row=int(tables[0]) if len(tables) and lives.alloc[tables[0]] >= 0 else int(rows[0]),
                rows=rows,
                nbytes=int(lives.size[rows].sum()),
                saving=window.replayed(window.whole(np.flatnonzero(alike))),
                looked_up=share,
            )

    def title(self, match: DenseGradient) -> str:
        """Say how little of the table is looked up."""
        share = format_percent(match.looked_up, 1.0)
        return f"are the gradient of an embedding, of whose rows a step looks up {share} at most"

    def advice(self, match: DenseGradient, case: Case) -> Iterator[Advice]:
        """Have a gradient for the rows that were looked up."""
        why = (
            f"{format_bytes(match.nbytes)} are zeros for rows that no index names: with "
            "`sparse=True` the gradient has the rows that were looked up (for SGD, Adagrad and "
            "SparseAdam)."
        )
        yield Advice("sparse_gradient", why, case.site)


RULE = DenseEmbeddingGradient()
