"""dense-detour: a sparse matrix is made dense to compute with it, and sparse again."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import numpy as np

from memprof.rules.case import Case
from memprof.rules.large_tensor import large_tensor, match_of
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import Place, called_name, place_of
from memprof.units import format_bytes
from memprof.views.window import Bools, Window

__all__ = ["RULE"]

_TO_DENSE = frozenset(("to_dense",))
_TO_SPARSE = frozenset(
    (
        "to_sparse",
        "to_sparse_bsc",
        "to_sparse_bsr",
        "to_sparse_coo",
        "to_sparse_csc",
        "to_sparse_csr",
    )
)


class DenseDetour(WasteRule[Match]):
    """`adj.to_dense()`, scaled by its sums of rows, and `to_sparse()` of what comes out."""

    name = "dense-detour"
    summary = "a sparse matrix is made dense in between"
    fixes = ("sparse_values",)
    yields_to = ("grown-by-copy", "broadcast")

    def matches(self, window: Window) -> Iterator[Match]:
        """The large tensor of the peak, made in a function between the one and the other."""
        large = large_tensor(window)
        if large is None or large.place is None or not _is_between(large.place):
            return
        spared = large.in_every_step & _made_in(window, large.place.function)
        yield match_of(window, large, spared)

    def title(self, match: Match) -> str:  # noqa: ARG002 - every match reads the same
        """Say what they are."""
        return "are a sparse matrix made dense, which becomes sparse again"

    def advice(self, match: Match, case: Case) -> Iterator[Advice]:
        """Compute with the values that there are."""
        why = (
            f"{format_bytes(match.nbytes)} are mostly zeros, which the function drops again: "
            "compute with `indices()` and `values()` (sums of rows by `torch.sparse.sum` or "
            "`scatter_add`), and make a sparse tensor of the new values."
        )
        yield Advice("sparse_values", why, case.site)


def _is_between(place: Place) -> bool:
    """Whether the function makes something dense up to a statement, and sparse after it."""
    if place.function is None:
        return False
    lines: dict[str, list[int]] = {"dense": [], "sparse": []}
    for node in ast.walk(place.function):
        name = called_name(node)
        if name in _TO_DENSE:
            lines["dense"].append(getattr(node, "lineno", 0))
        elif name in _TO_SPARSE:
            lines["sparse"].append(getattr(node, "lineno", 0))
    end = place.statement.end_lineno or place.line
    return any(line <= end for line in lines["dense"]) and any(
        line >= place.line for line in lines["sparse"]
    )


def _made_in(window: Window, function: ast.AST | None) -> Bools:
    """Per lifetime: whether a line of the function's own made it."""
    places = map(place_of, window.owners.sites.frames)
    own = np.array([place is not None and place.function is function for place in places])
    made: Bools = own[window.site]
    return made


RULE = DenseDetour()
