"""Calls of `einsum` as what they compute of two operands: a product of matrices, or a sum of one.

Letters stand for dimensions, as the program writes them; an ellipsis is one more of them.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from memprof.source_code.program import called_name

__all__ = ["Einsum", "einsum_of"]

_ELLIPSIS, _ITS_LETTER = "...", "…"
_OPERANDS = 2


@dataclass(frozen=True, slots=True, eq=False)
class Einsum:
    """An `einsum` of two operands, with the dimensions of both and of the result."""

    operands: tuple[ast.expr, ast.expr]
    inputs: tuple[str, str]
    output: str

    @property
    def summed(self) -> set[str]:
        """Dimensions that the result does not have."""
        return {*self.inputs[0], *self.inputs[1]} - {*self.output}

    @property
    def is_sum_of_values(self) -> bool:
        """Whether values are multiplied one by one, and some of the products are added up."""
        return {*self.inputs[0]} == {*self.inputs[1]} and bool(self.summed)

    @property
    def is_product(self) -> bool:
        """Whether the result has dimensions of its own of each operand, and others are summed."""
        ours, theirs = map(set, self.inputs)
        return self.summed == ours & theirs - {*self.output} and all(
            (bool(self.summed), ours - theirs, theirs - ours)
        )

    @property
    def factors(self) -> tuple[ast.expr, ast.expr] | None:
        """``q`` and ``k.mT`` of ``einsum("bid,bjd->bij", q, k)``, if ``@`` of these is the same.

        None where dimensions lie in another order, or one of them is turned by the result.
        """
        if not self.is_product or len(self.summed) != 1:
            return None
        (between,) = self.summed
        batch, row, column = self.output[:-2], self.output[-2], self.output[-1]
        swapped = row in self.inputs[1]
        ours, theirs = reversed(self.inputs) if swapped else self.inputs
        left, right = reversed(self.operands) if swapped else self.operands
        sides = (
            _as_side(left, ours, batch + row + between),
            _as_side(right, theirs, batch + between + column),
        )
        return (sides[0], sides[1]) if sides[0] is not None and sides[1] is not None else None


def _as_side(value: ast.expr, letters: str, wanted: str) -> ast.expr | None:
    """An operand of a product, turned where its last two dimensions are the other way round."""
    if letters == wanted:
        return value
    is_turned = letters[:-2] + letters[:-3:-1] == wanted
    return ast.Attribute(value, "mT", ast.Load()) if is_turned else None


def einsum_of(node: ast.AST) -> Einsum | None:
    """What a call of `einsum` with a text and two operands computes; None for other nodes."""
    if not isinstance(node, ast.Call) or called_name(node) != "einsum":
        return None
    given = node.args
    if len(given) != 1 + _OPERANDS or node.keywords or not isinstance(given[0], ast.Constant):
        return None
    equation = given[0].value
    if not isinstance(equation, str) or any(isinstance(one, ast.Starred) for one in given):
        return None
    text, arrow, output = equation.replace(" ", "").replace(_ELLIPSIS, _ITS_LETTER).partition("->")
    inputs = text.split(",")
    if not arrow:  # every letter that stands once, in their order
        output = "".join(sorted(one for one in {*text} - {","} if text.count(one) == 1))
        output = _ITS_LETTER * (_ITS_LETTER in text) + output.replace(_ITS_LETTER, "")
    parts = [*inputs, output]
    if len(inputs) != _OPERANDS or any(len({*one}) != len(one) for one in parts):
        return None
    if not {*output} <= {*text}:
        return None
    return Einsum((given[1], given[2]), (inputs[0], inputs[1]), output)
