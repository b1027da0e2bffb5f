"""dense-detour: a sparse matrix is made dense to compute with it, and sparse again."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import numpy as np

from memprof.rules.case import Case
from memprof.rules.large_tensor import large_tensor, match_of
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.call_sites import calls_of
from memprof.source_code.program import Place, called_name, place_of
from memprof.source_code.values import returned_by
from memprof.trace import Frame
from memprof.units import format_bytes
from memprof.views.stacks import made_through
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
_DEEPEST = 3
"""Functions that call one another, until it is given up."""


class DenseDetour(WasteRule[Match]):
    """`adj.to_dense()`, scaled by its sums of rows, and `to_sparse()` of what comes out."""

    name = "dense-detour"
    summary = "a sparse matrix is made dense in between"
    fixes = ("sparse_values",)
    yields_to = ("grown-by-copy", "broadcast")

    def matches(self, window: Window) -> Iterator[Match]:
        """The large tensor of the peak, made in a function between the one and the other."""
        large = large_tensor(window)
        place = large.place if large is not None else None
        functions = list(_detour(place)) if place is not None else []
        if large is None or not functions:
            return
        made = np.logical_or.reduce([_made_in(window, one) for one in functions])
        spared = large.in_every_step & made
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


def _detour(place: Place, depth: int = 0) -> Iterator[ast.AST]:
    """The functions that go the detour that a statement is in; none without one.

    One makes something dense up to the statement and sparse after it, also by functions of the
    file. Else each of its callers does, around the call.
    """
    if place.function is None or depth > _DEEPEST:
        return
    if _is_between(place):
        yield place.function
        return
    around = [list(_detour(at, depth + 1)) for at, _ in calls_of(place)]
    if all(around):
        yield from (one for each in around for one in each)


def _is_between(place: Place) -> bool:
    """Whether the function makes something dense up to a statement, and sparse after it."""
    assert place.function is not None
    lines: dict[str, list[int]] = {"dense": [], "sparse": []}
    for node in ast.walk(place.function):
        if _converts(place, node, _TO_DENSE):
            lines["dense"].append(getattr(node, "lineno", 0))
        elif _converts(place, node, _TO_SPARSE):
            lines["sparse"].append(getattr(node, "lineno", 0))
    end = place.statement.end_lineno or place.line
    return any(line <= end for line in lines["dense"]) and any(
        line >= place.line for line in lines["sparse"]
    )


def _converts(place: Place, node: ast.AST, names: frozenset[str]) -> bool:
    """Whether a call is of one of some methods, or of a function that does no more than that."""
    if called_name(node) in names:
        return True
    return any(
        called_name(value) in names and at.function is not place.function
        for at, value in returned_by(place, node)
    )


def _made_in(window: Window, function: ast.AST) -> Bools:
    """Per lifetime: whether a function made it, or what that called."""

    def is_inside(frame: Frame) -> bool:
        place = place_of(frame)
        return place is not None and place.function is function

    return made_through(window, is_inside)


RULE = DenseDetour()
