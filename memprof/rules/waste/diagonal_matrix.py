"""diagonal-matrix: a matrix of zeros around a diagonal is multiplied, where its values would do."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from memprof.rules.case import Case
from memprof.rules.large_tensor import large_tensor, made_by_its_statement, match_of
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import Place, bound_names, called_name, own_calls
from memprof.source_code.scopes import nodes_around, reads_of
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]

_MAKERS = ("diag", "diag_embed", "diagflat")
_PRODUCTS = frozenset(("bmm", "matmul", "mm"))


class DiagonalMatrix(WasteRule[Match]):
    """`x @ torch.diag(scale)`: n × n values, of which n are not zero."""

    name = "diagonal-matrix"
    summary = "a matrix of zeros around a diagonal is multiplied"
    fixes = ("multiply_by_vector",)

    def matches(self, window: Window) -> Iterator[Match]:
        """The large tensor of the peak, made of a diagonal and only multiplied as a matrix."""
        large = large_tensor(window)
        if large is None or large.place is None or not made_by_its_statement(window, large.row):
            return
        if _is_only_multiplied(large.place):
            yield match_of(window, large, large.in_every_step)

    def title(self, match: Match) -> str:  # noqa: ARG002 - every match reads the same
        """Say what most of it is."""
        return "are a diagonal matrix, zeros but for its diagonal"

    def advice(self, match: Match, case: Case) -> Iterator[Advice]:
        """Multiply by the values."""
        why = (
            f"{format_bytes(match.nbytes)} hold zeros: `x @ torch.diag(d)` is `x * d`, and "
            "`torch.diag(d) @ x` is `d[:, None] * x`."
        )
        yield Advice("multiply_by_vector", why, case.site)


def _is_only_multiplied(place: Place) -> bool:
    """Whether a statement makes a diagonal matrix that is an operand of products, and no more."""
    makers = own_calls(place.statement, *_MAKERS)
    if len(makers) != 1:
        return False
    statement, (maker,) = place.statement, makers
    if not isinstance(statement, ast.Assign) or statement.value is not maker:
        return _is_factor(maker, nodes_around(statement, maker))
    names = [one.id for one in bound_names(statement) if isinstance(one, ast.Name)]
    if len(names) != 1:
        return False
    reads = list(reads_of(place.scope, names[0]))
    return bool(reads) and all(_is_factor(load, around) for load, around in reads)


def _is_factor(value: ast.expr, around: list[ast.AST]) -> bool:
    """Whether an expression is a factor in a product of matrices."""
    parent = around[-1] if around else None
    if isinstance(parent, ast.BinOp):
        return isinstance(parent.op, ast.MatMult)
    if isinstance(parent, ast.Attribute):
        return parent.value is value and parent.attr in _PRODUCTS
    return called_name(parent) in _PRODUCTS if parent is not None else False


RULE = DiagonalMatrix()
