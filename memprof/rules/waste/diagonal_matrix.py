"""diagonal-matrix: a matrix of zeros around a diagonal, where the values themselves would do."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

from memprof.rules.case import Case
from memprof.rules.large_tensor import large_tensor, made_by_its_statement, match_of
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import Place, bound_names, called_name, own_calls
from memprof.source_code.scopes import nodes_around, reads_of
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]

_MAKERS = ("diag", "diag_embed", "diagflat", "eye")
_PRODUCTS = frozenset(("addmm", "bmm", "einsum", "linear", "matmul", "mm"))
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
        """The large tensor of the peak, made of a diagonal, and only multiplied or handed over."""
        large = large_tensor(window)
        if large is None or large.place is None or not made_by_its_statement(window, large.row):
            return
        use = _only_use(large.place)
        if use is not None:
            match = match_of(window, large, large.in_every_step)
            yield Diagonal(
                row=match.row,
                rows=match.rows,
                nbytes=match.nbytes,
                saving=match.saving,
                is_covariance=use is _Use.COVARIANCE,
            )

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


def _only_use(place: Place) -> _Use | None:
    """What a statement makes a diagonal matrix for; None where it is for anything else besides."""
    makers = own_calls(place.statement, *_MAKERS)
    if len(makers) != 1:
        return None
    statement, maker = place.statement, _with_values(place.statement, makers[0])
    if maker is None:
        return None
    if not isinstance(statement, ast.Assign) or statement.value is not maker:
        return _use(maker, nodes_around(statement, maker))
    names = [one.id for one in bound_names(statement) if isinstance(one, ast.Name)]
    if len(names) != 1:
        return None
    uses = {_use(load, around) for load, around in reads_of(place.scope, names[0])}
    return uses.pop() if len(uses) == 1 else None


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
