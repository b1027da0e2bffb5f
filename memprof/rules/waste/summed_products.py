"""summed-products: products of all pairs are made one by one, and then summed."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from memprof.rules.case import Case
from memprof.rules.large_tensor import (
    large_tensor,
    made_by_its_statement,
    match_of,
    one_of_several,
)
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.call_sites import calls_of, handed_over
from memprof.source_code.einsums import Einsum, einsum_of
from memprof.source_code.program import Place, called_name, calls_in
from memprof.source_code.reductions import reductions_of
from memprof.source_code.scopes import qualified_name
from memprof.source_code.values import values_of
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]

_SUMS = frozenset(("mean", "sum"))
_PRODUCTS = frozenset(("bmm", "matmul"))
_MULTIPLYING = frozenset(("mul", "multiply"))
_RESHAPING = frozenset(("reshape", "view"))
_REPEATING = frozenset(("expand", "expand_as", "repeat"))
_OPERANDS = 2
_LAST, _BEFORE_LAST = frozenset(("-1", "2")), frozenset(("-2", "1"))
"""Where a batch of vectors is given a dimension, to make columns or rows of them."""
_OF_SIMILARITY = "/torch/nn/modules/distance.py"
"""The file of torch's module that multiplies and sums by itself; recorders name no class for it."""


class SummedProducts(WasteRule[Match]):
    """`(x[:, :, None] * x[:, None, :]).mean(0)`: n · d · d values for a matrix of d · d."""

    name = "summed-products"
    summary = "products of all pairs are made one by one, and then summed"
    fixes = ("einsum", "chunk")

    def matches(self, window: Window) -> Iterator[Match]:
        """The large tensor of the peak, a product of shapes that broadcast, and only summed.

        Of a similarity several are there, of which one alone need not be much.
        """
        large = large_tensor(window) or one_of_several(window)
        if large is None or large.place is None:
            return
        files = (one.filename.replace("\\", "/") for one in window.stack(large.row))
        by_similarity = any(one.endswith(_OF_SIMILARITY) for one in files)
        is_large = large_tensor(window) is not None and made_by_its_statement(window, large.row)
        if not (by_similarity or is_large):
            return
        if _is_only_summed(large.place):
            yield match_of(window, large, large.in_every_step)

    def title(self, match: Match) -> str:  # noqa: ARG002 - every match reads the same
        """Say what is left of them."""
        return "are products of all pairs, of which only sums are used"

    def advice(self, match: Match, case: Case) -> Iterator[Advice]:
        """Have a product of matrices add them up, or go on in parts."""
        why = (
            f"Only sums are used of {format_bytes(match.nbytes)} of products: a product of "
            "matrices (`a.T @ b`; of normalized rows for cosines), or `torch.einsum`, adds them up "
            "as it makes them."
        )
        yield Advice("einsum", why, case.site)
        yield Advice("chunk", "Or work through them in parts.", case.site)


def _is_only_summed(place: Place) -> bool:
    """Whether a statement multiplies all pairs for nothing but a sum.

    Each operand has a dimension that the other lacks: a mask has not, whose products are no more.
    """
    for node in ast.walk(place.statement):
        if isinstance(node, (ast.BinOp, ast.Call)) and _are_products(node, place):
            sums = [
                (call, value)
                for at, value in _results(place, node)
                for call in reductions_of(at, value)
            ]
            names = {called_name(call) if call is not None else "" for call, _ in sums}
            if names and names <= _SUMS and all(_is_direct(*one) for one in sums):
                return True
    # It multiplies, and sums what it has multiplied, by itself.
    similar = [call for call in calls_in(place.statement) if _is_similarity(place, call)]
    return any(
        len(call.args) > 1 and all(_has_new_dimension(one, place) for one in call.args[:2])
        for call in similar
    )


def _results(place: Place, value: ast.expr) -> list[tuple[Place, ast.expr]]:
    """An expression of a statement; of a function that returns it, the calls of that function."""
    statement = place.statement
    if isinstance(statement, ast.Return) and statement.value is value:
        return list(calls_of(place))
    return [(place, value)]


def _multiplies_pairs(whole: Einsum) -> bool:
    """Whether an `einsum` has each dimension of both its operands, of which neither has all."""
    ours, theirs = map(set, whole.inputs)
    return not whole.summed and bool(ours - theirs) and bool(theirs - ours)


def _are_products(value: ast.expr | None, place: Place, depth: int = 2) -> bool:
    """Whether an expression multiplies all pairs, or weighs such products: ``products * mask``."""
    if isinstance(value, ast.Name) and depth:
        values = list(values_of(place, value.id))
        reads = [one for one in ast.walk(place.scope) if _reads(one, value.id)]
        once = len(values) == len(reads) == 1
        return once and _are_products(values[0], place, depth - 1)
    whole = einsum_of(value) if value is not None else None
    if whole is not None:
        return _multiplies_pairs(whole)
    sides = _factors(value, place)
    if isinstance(value, ast.Call) and not sides:
        return _is_outer_product(value, place)
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.MatMult):
        return _is_column_by_row(value.left, value.right)
    if not sides:
        return False
    ones = [_one_of_shape(one, place) for one in sides]
    if None not in ones and ones[0] != ones[1]:
        return True
    if all(_has_new_dimension(one, place) for one in sides):
        return True
    return any(_are_products(one, place, depth) for one in sides)


def _factors(value: ast.expr | None, place: Place) -> tuple[ast.expr, ...]:
    """What is multiplied value by value: of ``a * b``, ``a.mul(b)`` and ``torch.mul(a, b)``."""
    if isinstance(value, ast.BinOp):
        return (value.left, value.right) if isinstance(value.op, ast.Mult) else ()
    if not isinstance(value, ast.Call) or called_name(value) not in _MULTIPLYING:
        return ()
    if qualified_name(place, value.func).startswith("torch."):
        return tuple(value.args[:_OPERANDS])
    receiver = value.func.value if isinstance(value.func, ast.Attribute) else None
    return (receiver, value.args[0]) if receiver is not None and value.args else ()


def _one_of_shape(value: ast.expr, place: Place) -> int | None:
    """Which dimension has a length of one by ``x.view(n, 1, m)``, also of a name of such.

    None where it has none, or several.
    """
    if isinstance(value, ast.Name):
        values = list(values_of(place, value.id))
        value = values[0] if len(values) == 1 and values[0] is not None else value
    if not isinstance(value, ast.Call) or called_name(value) not in _RESHAPING:
        return None
    sizes = value.args
    if len(sizes) == 1 and isinstance(sizes[0], (ast.List, ast.Tuple)):
        sizes = sizes[0].elts
    ones = [
        at
        for at, one in enumerate(sizes, -len(sizes))
        if isinstance(one, ast.Constant) and one.value == 1
    ]
    return ones[0] if len(ones) == 1 else None


def _is_outer_product(call: ast.Call, place: Place) -> bool:
    """``torch.bmm(x.unsqueeze(2), x.unsqueeze(1))``: all pairs are multiplied, and none summed."""
    name = qualified_name(place, call.func).removeprefix("torch.")
    is_product = name in _PRODUCTS and len(call.args) == _OPERANDS
    return is_product and _is_column_by_row(*call.args)


def _is_column_by_row(left: ast.expr, right: ast.expr) -> bool:
    """Whether a product of matrices is of one column by one row, which sums nothing."""
    return _new_dimension(left) in _LAST and _new_dimension(right) in _BEFORE_LAST


def _new_dimension(value: ast.expr) -> str:
    """Where an operand is given a dimension, as a number: 2 or -1, 1 or -2; else empty."""
    if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Tuple):
        values = [getattr(one, "value", "") for one in value.slice.elts]
        if values.count(None) != 1 or any(isinstance(one, int) for one in values):
            return ""
        return str(values.index(None) - (len(values) if values[0] is ... else 0))
    if not isinstance(value, ast.Call) or called_name(value) != "unsqueeze" or not value.args:
        return ""
    return ast.unparse(value.args[-1])


def _reads(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)


def _is_similarity(place: Place, call: ast.Call) -> bool:
    """Whether a call is one of torch's cosine similarity, as a function or a module."""
    if called_name(call) == "cosine_similarity":
        return True
    modules: list[ast.expr | None] = [call.func]
    if isinstance(call.func, (ast.Name, ast.Attribute)):
        modules = list(values_of(place, ast.unparse(call.func)))
    names = {called_name(one) if one is not None else "" for one in modules}
    return names == {"CosineSimilarity"}


def _is_direct(call: ast.Call | None, products: ast.expr) -> bool:
    """Whether a call sums a name or the products, and no function of them, along a dimension.

    The sum of squares, or of absolute values, is no sum of products.
    """
    if call is None or not isinstance(call.func, ast.Attribute):
        return False
    value = call.func.value
    if isinstance(value, ast.Name) and value.id == "torch":
        value = call.args[0]
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    is_own = isinstance(value, (ast.BinOp, ast.Name)) or value is products
    return bool(given) and is_own


def _has_new_dimension(value: ast.expr, place: Place) -> bool:
    """Whether an operand is given a dimension of length one: ``x[:, None]``, ``x.unsqueeze(1)``.

    Or a name stands for such an operand alone, or for what a call hands over as it.
    """
    if isinstance(value, ast.Name):
        values = list(values_of(place, value.id))
        is_bound = any(one is not None for one in values)
        handed = None if is_bound else handed_over(place, value, (place.program,))
        if handed is not None and not isinstance(handed[1], ast.Name):
            return _has_new_dimension(handed[1], handed[0])
        if len(values) != 1 or values[0] is None or isinstance(values[0], ast.Name):
            return False
        value = values[0]
    if called_name(value) in _REPEATING and isinstance(value, ast.Call):
        within = value.func.value if isinstance(value.func, ast.Attribute) else value
        return within is not value and _has_new_dimension(within, place)
    if isinstance(value, ast.Subscript):
        entries = value.slice.elts if isinstance(value.slice, ast.Tuple) else [value.slice]
        return any(isinstance(one, ast.Constant) and one.value is None for one in entries)
    return called_name(value) == "unsqueeze"


RULE = SummedProducts()
