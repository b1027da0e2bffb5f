"""full-factor: a decomposition makes a square factor, of which the first columns are read."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from math import isqrt

import numpy as np

from memprof.rules.case import Case
from memprof.rules.large_tensor import LargeTensor, large_tensor, made_by_its_statement
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.idioms import keyword
from memprof.source_code.program import Place, bound_names, called_name, calls_in
from memprof.source_code.scopes import reads_of
from memprof.units import format_bytes
from memprof.views.peak_without import Cuts
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_OF_SHAPE = frozenset(("device", "dtype", "ndim", "shape", "size"))
_LEAST_TIMES = 2
"""The full factor over the thin one: a matrix that is nearly square has little to save."""


class FullFactor(WasteRule[Match]):
    """`u, s, vh = torch.linalg.svd(tall)`: `u` is square, and `u[:, :rank]` is what is used."""

    name = "full-factor"
    summary = "a decomposition makes a square factor, of which the first columns are read"
    fixes = ("thin_factors",)

    def matches(self, window: Window) -> Iterator[Match]:
        """The large tensor of the peak, where a thin factor would do."""
        large = large_tensor(window)
        if large is None or large.place is None or not made_by_its_statement(window, large.row):
            return
        factors = _factors(large.place)
        if factors is None:
            return
        full, thin = _with_thin(window, large)
        if not len(full):
            return
        completed = _completed(window, full, thin)
        if not all(_is_cut(large.place, *factors[at]) for at in completed):
            return
        there = full[window.at_peak[full]]
        lives = window.lives
        # Instead of a full one there is a thin one for as long.
        cuts = Cuts(
            np.concatenate([full, thin]),
            np.concatenate([lives.alloc[full], lives.free[full]]),
            np.concatenate([lives.free[full], lives.alloc[full]]),
        )
        yield Match(
            row=large.row,
            rows=there,
            nbytes=int(lives.size[there].sum()),
            saving=window.replayed(cuts),
        )

    def title(self, match: Match) -> str:  # noqa: ARG002 - every match reads the same
        """Say what they are."""
        return "are a square factor of a decomposition, of which the first columns are read"

    def advice(self, match: Match, case: Case) -> Iterator[Advice]:
        """Ask for thin factors."""
        why = (
            f"`svd` completes a factor of {format_bytes(match.nbytes)} to a square matrix: "
            "`full_matrices=False` makes the columns alone that belong to singular values."
        )
        yield Advice("thin_factors", why, case.site, typed="full_matrices=False")


def _factors(place: Place) -> tuple[tuple[str, int], tuple[str, int]] | None:
    """The variables of the factors of a full `svd`, each with the index of its singular values.

    None where a statement is not that.
    """
    statement = place.statement
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
        return None
    call = statement.value
    is_linalg = isinstance(call.func, ast.Attribute) and "linalg" in ast.unparse(call.func.value)
    if called_name(call) != "svd" or not is_linalg or call not in calls_in(statement, "svd"):
        return None
    given = [*call.args[1:], *([one] if (one := keyword(call, "full_matrices")) else [])]
    if not all(isinstance(one, ast.Constant) and one.value is True for one in given):
        return None
    names = [name for name in bound_names(statement) if isinstance(name, ast.Name)]
    factors = 3
    if len(names) != factors:
        return None
    left, _, right = (name.id for name in names)
    return (left, -1), (right, 0)


def _completed(window: Window, full: Ints, thin: Ints) -> tuple[int, ...]:
    """Which of the two factors are the completed ones: a call makes both, with values between.

    The other one is square as it is: a thin one is no smaller.
    """
    lives = window.lives
    made = np.flatnonzero((lives.stack == lives.stack[full[0]]) & (lives.alloc >= 0))
    sizes = lives.requested[made[np.argsort(lives.alloc[made], kind="stable")]]
    large, small = int(lives.requested[full[0]]), int(lives.requested[thin[0]])
    is_between = sizes[1:-1] <= np.minimum(sizes[:-2], sizes[2:])
    apart = list(zip(sizes[:-2][is_between].tolist(), sizes[2:][is_between].tolist(), strict=True))
    other = small**2 // large
    is_left, is_right = (large, other) in apart, (other, large) in apart
    if is_left is is_right:
        return (0, 1)
    return (0,) if is_left else (1,)


def _is_cut(place: Place, name: str, entry: int) -> bool:
    """Whether every read of a factor takes its first columns, or rows: ``u[:, :rank]``."""
    for load, around in reads_of(place.scope, name):
        parent = around[-1]
        if isinstance(parent, ast.Attribute) and parent.attr in _OF_SHAPE:
            continue
        if not isinstance(parent, ast.Subscript) or parent.value is not load:
            return False
        index = parent.slice
        entries = index.elts if isinstance(index, ast.Tuple) else [index]
        if entry and not isinstance(index, ast.Tuple):
            return False
        if not _is_of_first(entries[entry]):
            return False
    return True


def _is_of_first(entry: ast.expr) -> bool:
    """Whether an entry of a subscript takes one place, or some from the start on."""
    if isinstance(entry, ast.Slice):
        return entry.upper is not None and not isinstance(entry.upper, ast.UnaryOp)
    return isinstance(entry, ast.Constant) and type(entry.value) is int


def _with_thin(window: Window, large: LargeTensor) -> tuple[Ints, Ints]:
    """The full factors in every step, and for each a lifetime that takes what a thin one does.

    Both factors are square, so a thin one takes the square root of the product of their sizes. So
    does the matrix that is decomposed, and its copy.
    """
    lives = window.lives
    same = np.flatnonzero((lives.stack == lives.stack[large.row]) & (lives.alloc >= 0))
    size = int(lives.requested[large.row])
    others = set(lives.requested[same].tolist())
    roots = {isqrt(size * other) for other in others if isqrt(size * other) ** 2 == size * other}
    there = roots.intersection(lives.requested.tolist())
    thin = max((root for root in there if root * _LEAST_TIMES <= size), default=-1)
    as_large = np.flatnonzero(lives.requested == thin)
    full = same[lives.requested[same] == size]
    return (full, np.repeat(as_large[:1], len(full))) if len(as_large) else (full[:0], full[:0])


RULE = FullFactor()
