"""dense-adjacency: a matrix of edges is dense, though only its products are needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.large_tensor import large_tensor, made_by_module
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.factors import Factor, factors_of, is_called_of_batch
from memprof.source_code.program import place_of
from memprof.trace import Category
from memprof.units import format_bytes
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak, that one such matrix has."""
_LEAST_OF_SIZE = 0.25
"""Of the largest: the same lines make small ones of other graphs, and vectors."""
_MANY_EDGES = 0.4
"""Of the matrix, that a table of its edges may take: with more of them than a tenth of all pairs a
sparse matrix saves little. An edge is two indices of 8 bytes, an entry has 4."""
_PARTS = (Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE)


@dataclass(frozen=True, slots=True, eq=False)
class Adjacency(Match):
    """Which matrix it is."""

    name: str = ""
    """As the program writes it; empty for that of all graphs of a batch."""


class DenseAdjacency(WasteRule[Adjacency]):
    """`adj = torch.zeros(n, n)`, `adj[src, dst] = 1.0`, of which only `adj @ x` is read."""

    name = "dense-adjacency"
    summary = "a matrix of edges is dense, though only its products are needed"
    fixes = ("sparse_matrix", "adjacency_per_graph")
    yields_to = ("dense-detour", "kept-one-hot", "one-hot")

    def matches(self, window: Window) -> Iterator[Adjacency]:
        """Large tensors of the peak that the lines make which such a matrix comes from."""
        if window.peak.event < 0:
            return
        of_batch = _of_batch(window)
        if of_batch is not None:
            yield of_batch
            return
        mask = window.at_peak & ~np.isin(window.category, _PARTS)
        large = np.flatnonzero(mask & (window.lives.size >= _LEAST_SHARE * window.peak.bytes))
        if not len(large):
            return
        for factor in factors_of(window.programs):
            match = _match_of(window, large, factor)
            if match is not None:
                yield match

    def title(self, match: Adjacency) -> str:
        """Say what most of it is."""
        if not match.name:
            return "are one matrix of all pairs of nodes of a batch of graphs"
        return f"are the matrix `{match.name}`, zero but for its edges, and only multiplied"

    def advice(self, match: Adjacency, case: Case) -> Iterator[Advice]:
        """Give the edges alone, or a small matrix for each graph."""
        nbytes = format_bytes(match.nbytes)
        if not match.name:
            why = (
                f"{nbytes} have a value for every two nodes of the batch, though edges are within "
                "a graph: `to_dense_adj(edge_index, batch)` and `to_dense_batch(x, batch)` make "
                "one small matrix for each graph."
            )
            yield Advice("adjacency_per_graph", why, case.site)
            return
        why = (
            f"{nbytes} are zeros but for the edges: `torch.sparse_coo_tensor(edge_index, values, "
            "(n, n))` holds the edges alone, and `torch.sparse.mm(adj, x)` multiplies by them. Or "
            "add up along the edges: `index_add_`."
        )
        yield Advice("sparse_matrix", why, case.site)


def _match_of(window: Window, large: Ints, factor: Factor) -> Adjacency | None:
    """What of the peak the lines of a matrix made, where it may have few values."""
    frames = window.owners.sites.frames
    sites = np.unique(window.site[large]).tolist()
    own = [one for one in sites if (at := place_of(frames[one])) and factor.is_made_by(at)]
    rows = large[np.isin(window.site[large], own)]
    rows = np.array([row for row in rows.tolist() if not made_by_module(window, row)], np.int64)
    if not len(rows):
        return None
    made = _made_by(window, factor)
    size = int(window.lives.size[rows].max())
    made &= (window.lives.size >= _LEAST_OF_SIZE * size) & ~np.isin(window.category, _PARTS)
    there = np.flatnonzero(made & window.at_peak)
    if _has_many_edges(window, made, size):
        return None
    return Adjacency(
        row=window.main_site(made & window.at_peak),
        rows=there,
        nbytes=int(window.lives.size[there].sum()),
        saving=window.replayed(window.whole(np.flatnonzero(made))),
        name=factor.name,
    )


def _made_by(window: Window, factor: Factor) -> Bools:
    """Per lifetime: whether a line of the matrix made it."""
    places = map(place_of, window.owners.sites.frames)
    own = np.array([place is not None and factor.is_made_by(place) for place in places])
    made: Bools = own[window.site]
    return made


def _has_many_edges(window: Window, made: Bools, size: int) -> bool:
    """Whether something was there as the first was made that may be edges of most pairs."""
    first = int(np.flatnonzero(made & (window.lives.size >= size))[0])
    there = window.lives.alive_at(int(window.lives.alloc[first])) & ~made
    there &= ~window.has_owner | (window.category == Category.BUFFER)
    return bool((window.lives.size[there] >= _MANY_EDGES * size).any())


def _of_batch(window: Window) -> Adjacency | None:
    """The matrix of all graphs of a batch at once, with what is computed of it pair by pair."""
    large = large_tensor(window)
    if large is None:
        return None
    for row in large.there.tolist():
        place = place_of(window.frame_of(row))
        if place is not None and is_called_of_batch(place, window.programs):
            return Adjacency(
                row=row,
                rows=large.there,
                nbytes=large.nbytes,
                saving=window.replayed(window.whole(np.flatnonzero(large.in_every_step))),
            )
    return None


RULE = DenseAdjacency()
