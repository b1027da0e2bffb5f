"""diagonal-matrix: a matrix of zeros around a diagonal, where the values themselves would do."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

from memprof.rules.case import Case
from memprof.rules.large_tensor import large_tensor, made_by_its_statement, match_of
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.call_sites import calls_of
from memprof.source_code.program import Place, bound_names, called_name, own_calls, place_of
from memprof.source_code.scopes import nodes_around, reads_of
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]

_MAKERS = ("diag", "diag_embed", "diagflat", "eye")
_PRODUCTS = frozenset(("addmm", "bmm", "einsum", "linear", "matmul", "mm"))
_DEEPEST = 3
"""Functions that return what another one returns, until it is given up."""
_LEAST_SHARE = 0.1
"""Of the peak, where others are as large."""
_NORMAL = "MultivariateNormal"
"""A distribution that takes a matrix of covariances."""


@dataclass(frozen=True, slots=True, eq=False)
class Diagonal(Match):
    """What it is for."""

    is_covariance: bool = False
    """Of a distribution, whose dimensions are independent of one another."""


class DiagonalMatrix(WasteRule[Diagonal]):
    """`x @ torch.diag(scale)`: n × n values, of which n are not zero."""

    name = "diagonal-matrix"
    summary = "a matrix of zeros around a diagonal is multiplied, or a distribution's covariance"
    fixes = ("multiply_by_vector",)

    def matches(self, window: Window) -> Iterator[Diagonal]:
        """The large tensor of the peak, made of a diagonal, and only multiplied or handed over.

        Or one of several as large: what it is multiplied by, and the product, may be of its size.
        """
        large = large_tensor(window)
        if large is None:
            return
        use = _use_of_row(window, large.row)
        if use is not None:
            match = match_of(window, large, large.in_every_step)
            yield Diagonal(
                row=match.row,
                rows=match.rows,
                nbytes=match.nbytes,
                saving=match.saving,
                is_covariance=use is _Use.COVARIANCE,
            )
            return
        for stack in np.unique(window.lives.stack[large.there]).tolist():
            rows = large.there[window.lives.stack[large.there] == stack]
            nbytes = int(window.lives.size[rows].sum())
            if window.share(nbytes) < _LEAST_SHARE or _use_of_row(window, int(rows[0])) is None:
                continue
            made = np.flatnonzero(large.in_every_step & (window.lives.stack == stack))
            saving = window.replayed(window.whole(made))
            yield Diagonal(row=int(rows[0]), rows=rows, nbytes=nbytes, saving=saving)

    def title(self, match: Diagonal) -> str:  # noqa: ARG002 - every match reads the same
        """Say what most of it is."""
        return "are a diagonal matrix, zeros but for its diagonal"

    def advice(self, match: Diagonal, case: Case) -> Iterator[Advice]:
        """Multiply by the values; of a distribution, take one for each dimension."""
        if match.is_covariance:
            why = (
                f"{format_bytes(match.nbytes)} are covariances of dimensions that have none, and "
                f"what `{_NORMAL}` makes of them: `Independent(Normal(mean, std), 1)` is the same "
                "distribution, of the standard deviations alone."
            )
            own = "torch.distributions.Independent(torch.distributions.Normal(mean, std), 1)"
            yield Advice("multiply_by_vector", why, case.site, typed=own)
            return
        why = (
            f"{format_bytes(match.nbytes)} hold zeros: `x @ torch.diag(d)` is `x * d`, and "
            "`torch.diag(d) @ x` is `d[:, None] * x`."
        )
        yield Advice("multiply_by_vector", why, case.site)


class _Use(Enum):
    """What reads a matrix."""

    FACTOR = auto()
    COVARIANCE = auto()


def _use_of_row(window: Window, row: int) -> _Use | None:
    place = place_of(window.frame_of(row))
    is_own = place is not None and made_by_its_statement(window, row)
    return _only_use(place) if place is not None and is_own else None


def _only_use(place: Place) -> _Use | None:
    """What a statement makes a diagonal matrix for; None where it is for anything else besides."""
    makers = own_calls(place.statement, *_MAKERS)
    if len(makers) != 1:
        return None
    maker = _with_values(place.statement, makers[0])
    uses = _uses_of(place, maker) if maker is not None else set()
    return uses.pop() if len(uses) == 1 else None


def _uses_of(place: Place, value: ast.expr, depth: int = 0) -> set[_Use | None]:
    """What an expression of a statement is, or the name that it is bound to.

    What a function returns is what its calls are.
    """
    statement = place.statement
    if isinstance(statement, ast.Return) and statement.value is value and depth < _DEEPEST:
        calls = calls_of(place)
        return {use for at, call in calls for use in _uses_of(at, call, depth + 1)}
    if not isinstance(statement, ast.Assign) or statement.value is not value:
        return {_use(value, nodes_around(statement, value))}
    names = [one.id for one in bound_names(statement) if isinstance(one, ast.Name)]
    if len(names) != 1:
        return set()
    reads = list(reads_of(place.scope, names[0]))
    if len(reads) == 1 and isinstance(reads[0][1][-1], ast.Return):
        at = place.program.place(reads[0][0])
        return _uses_of(at, reads[0][0], depth) if at is not None else set()
    return {_use(load, around) for load, around in reads}


def _with_values(statement: ast.stmt, maker: ast.Call) -> ast.expr | None:
    """The matrix that a call makes; of ``torch.eye(n) * d`` the product, without one None.

    Of ones alone it is the identity, which nobody multiplies by to scale.
    """
    if called_name(maker) != "eye":
        return maker
    parent = next(iter(nodes_around(statement, maker)[::-1]), None)
    return parent if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Mult) else None


def _use(value: ast.expr, around: list[ast.AST]) -> _Use | None:
    """What an expression is, by what is around it."""
    parent = around[-1] if around else None
    if isinstance(parent, ast.keyword):
        parent = around[-2]
    if isinstance(parent, ast.Call) and called_name(parent) == _NORMAL:
        return _Use.COVARIANCE
    return _Use.FACTOR if _is_factor(value, parent) else None


def _is_factor(value: ast.expr, parent: ast.AST | None) -> bool:
    """Whether an expression is a factor in a product of matrices."""
    if isinstance(parent, ast.BinOp):
        return isinstance(parent.op, ast.MatMult)
    if isinstance(parent, ast.Attribute):
        return parent.value is value and parent.attr in _PRODUCTS
    return called_name(parent) in _PRODUCTS if parent is not None else False


RULE = DiagonalMatrix()
