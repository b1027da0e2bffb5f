"""Calls of `einsum` as what they compute of two operands: a product of matrices, or a sum of one.

Letters stand for dimensions, as the program writes them; an ellipsis is one more of them.
"""

from __future__ import annotations

import ast
import string
from dataclasses import dataclass

from memprof.source_code.program import called_name

__all__ = ["Einsum", "einsum_of", "multiplied_last"]

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


def multiplied_last(first: Einsum, second: Einsum, product: ast.expr) -> str:
    """Two products, of which the second multiplies the first, so that one factor comes last.

    ``einsum("bihd,bhde->bihe", q, einsum("bjhd,bjhe->bhde", k, v))`` of
    ``einsum("bhij,bjhe->bihe", einsum("bihd,bjhd->bhij", q, k), v)``. Empty where both factors of
    the first have dimensions that the second sums, or where ellipses are in different places.
    """
    at = 0 if second.operands[0] is product else 1
    theirs = second.inputs[at]
    if len(theirs) != len(first.output) or _places(theirs) != _places(first.output):
        return ""
    names = dict(zip(theirs, first.output, strict=True))
    taken = {*first.inputs[0], *first.inputs[1]}
    for letter in (*second.inputs[1 - at], *second.output):
        if letter == _ITS_LETTER and letter not in names and letter in taken:
            return ""
        if letter not in names:
            names[letter] = _free(letter, taken)
            taken.add(names[letter])
    third = "".join(names[one] for one in second.inputs[1 - at])
    result = "".join(names[one] for one in second.output)
    between = {names[one] for one in second.summed}
    inner = [n for n in (0, 1) if between & {*first.inputs[n]}]
    if len(inner) != 1 or not between <= {*first.inputs[inner[0]]}:
        return ""
    ours, last = first.inputs[inner[0]], first.inputs[1 - inner[0]]
    middle = "".join(
        one for one in dict.fromkeys(ours + third) if one in {*last, *result} - between
    )
    own, rest = (ast.unparse(first.operands[n]) for n in (inner[0], 1 - inner[0]))
    other = ast.unparse(second.operands[1 - at])
    texts = (f"{ours},{third}->{middle}", f"{last},{middle}->{result}")
    near, far = (one.replace(_ITS_LETTER, _ELLIPSIS) for one in texts)
    return f'torch.einsum("{far}", {rest}, torch.einsum("{near}", {own}, {other}))'


def _free(letter: str, taken: set[str]) -> str:
    """A letter, or where another dimension has it the next one that none has."""
    if letter not in taken:
        return letter
    at = string.ascii_letters.find(letter)
    following = string.ascii_letters[at:] + string.ascii_letters[:at]
    return next(one for one in following if one not in taken)


def _places(letters: str) -> list[int]:
    """Where an ellipsis is among letters."""
    return [at for at, one in enumerate(letters) if one == _ITS_LETTER]
