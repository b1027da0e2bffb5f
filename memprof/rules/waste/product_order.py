"""product-order: a large product of two small matrices is made, only to be multiplied again."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

from memprof.rules.case import Case
from memprof.rules.large_tensor import large_tensor, made_by_its_statement, match_of
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import Place, called_name
from memprof.source_code.scopes import nodes_around, reads_of
from memprof.source_code.values import values_of
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]

_LEAST_RATIO = 3
"""Times as large as any other tensor there: so large are both factors and the last product."""
_PRODUCTS = frozenset(("bmm", "matmul", "mm", "mv"))
_LINEAR = "linear"
_SUM = "sum"
_SCALES = frozenset(("len", "sqrt"))
"""Calls that return a number."""
_TURNED = frozenset(("T", "mT"))


class _Use(Enum):
    """What a product is multiplied as."""

    LEFT = auto()
    RIGHT = auto()
    WEIGHT = auto()
    """Of `F.linear`, which turns it."""
    SUMMED = auto()
    """Along a dimension: a product with ones."""


@dataclass(frozen=True, slots=True, eq=False)
class Reordered(Match):
    """The product, and in which order the same comes of three factors."""

    product: str = ""
    instead: str = ""
    is_summed: bool = False
    """Sums along a dimension are read of it as well."""


class ProductOrder(WasteRule[Reordered]):
    """`(q @ k.T) @ v` without a softmax: n · n values, where `q @ (k.T @ v)` has d · d."""

    name = "product-order"
    summary = "a large product of small matrices is made to be multiplied again"
    fixes = ("apply_factors",)
    yields_to = ("merged-adapters",)
    other_operators = True

    def matches(self, window: Window) -> Iterator[Reordered]:
        """The large tensor of the peak, a product that is only a factor of others."""
        large = large_tensor(window)
        if large is None or large.place is None or not made_by_its_statement(window, large.row):
            return
        lives = window.lives
        others = window.at_peak & ~large.alike
        if _LEAST_RATIO * lives.requested[others].max(initial=0) > lives.requested[large.row]:
            return
        order = _order(large.place)
        if order is None:
            return
        match = match_of(window, large, large.in_every_step)
        yield Reordered(
            row=match.row,
            rows=np.asarray(match.rows),
            nbytes=match.nbytes,
            saving=match.saving,
            product=order[0],
            instead=order[1],
            is_summed=order[2],
        )

    def title(self, match: Reordered) -> str:
        """Say what it is."""
        return f"are the product `{match.product}`, which is only multiplied again"

    def advice(self, match: Reordered, case: Case) -> Iterator[Advice]:
        """Multiply in the other order."""
        why = (
            f"`{match.product}` takes {format_bytes(match.nbytes)}, more than its factors and what "
            f"comes of it together: in the other order, `{match.instead}`, nothing so large is "
            "made."
        )
        if match.is_summed:
            why += " Its sums along a dimension are products with ones, in that order too."
        yield Advice("apply_factors", why, case.site, typed=match.instead)


def _order(place: Place) -> tuple[str, str, bool] | None:
    """The product that a statement makes, the same in the other order, and if it is summed too."""
    for node in ast.walk(place.statement):
        factors = _factors(node)
        if factors is None or not isinstance(node, ast.expr):
            continue
        uses = _uses(place, node)
        products = [(use, other, scale) for use, other, scale in uses if use is not _Use.SUMMED]
        if len(products) != 1 or any(use is None for use, _, _ in uses):
            continue
        use, other, scale = products[0]
        if use is not None and other is not None:
            is_summed = len(uses) > len(products)
            return ast.unparse(node), _reordered(*factors, use, other) + scale, is_summed
    return None


def _factors(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """Both sides of a product of matrices; of none that are products themselves."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return node.left, node.right
    if not isinstance(node, ast.Call) or called_name(node) not in _PRODUCTS:
        return None
    if len(node.args) == 1 and isinstance(node.func, ast.Attribute):
        return node.func.value, node.args[0]
    return (node.args[0], node.args[1]) if len(node.args) > 1 else None


def _uses(place: Place, product: ast.expr) -> list[tuple[_Use | None, ast.expr | None, str]]:
    """What reads a product, on the spot or by the one name that the statement binds to it.

    And by which numbers it is multiplied or divided until then, as they are written.
    """
    statement = place.statement
    whole, around, scale = _scaled(product, nodes_around(statement, product))
    if not (isinstance(statement, ast.Assign) and statement.value is whole):
        return [(*_use(whole, around), scale)]
    names = [one.id for one in statement.targets if isinstance(one, ast.Name)]
    if len(names) != 1 or len(list(values_of(place, names[0]))) != 1:
        return []
    uses = []
    for load, nodes in reads_of(place.scope, names[0]):
        value, beyond, more = _scaled(load, nodes)
        uses.append((*_use(value, beyond), scale + more))
    return uses


def _scaled(value: ast.expr, around: list[ast.AST]) -> tuple[ast.expr, list[ast.AST], str]:
    """A value with the numbers that it is multiplied with or divided by, and what is around.

    And these numbers, as they would stand behind it: `` / len(k)``.
    """
    around, scale = list(around), ""
    while around and isinstance(around[-1], ast.BinOp):
        parent = around[-1]
        is_left = parent.left is value
        number = parent.right if is_left else parent.left
        divides = isinstance(parent.op, ast.Div) and is_left
        if not (divides or isinstance(parent.op, ast.Mult)) or not _is_number(number):
            break
        scale += f" {'/' if divides else '*'} {_factor(number)}"
        value = parent
        around.pop()
    return value, around, scale


def _is_number(value: ast.expr) -> bool:
    """Whether an expression is a number by what it says."""
    if isinstance(value, ast.Constant):
        return isinstance(value.value, (int, float))
    if isinstance(value, ast.BinOp):
        sides = (value.left, value.right)
        is_power = isinstance(value.op, ast.Pow) and _is_number(value.right)
        return is_power or all(map(_is_number, sides))
    return isinstance(value, ast.Call) and called_name(value) in _SCALES


def _use(value: ast.expr, around: list[ast.AST]) -> tuple[_Use | None, ast.expr | None]:
    """What an expression is for what is around it, and what it is multiplied with."""
    parent = around[-1] if around else None
    factors = _factors(parent) if parent is not None else None
    if isinstance(parent, ast.Attribute) and len(around) > 1:
        call = around[-2]
        if parent.attr == _SUM and isinstance(call, ast.Call) and call.func is parent:
            return (_Use.SUMMED, None) if call.args or call.keywords else (None, None)
        factors = _factors(call) if isinstance(call, ast.Call) and call.func is parent else None
    if factors is not None:
        left, right = factors
        if left is value:
            return _Use.LEFT, right
        return (_Use.RIGHT, left) if right is value else (None, None)
    if isinstance(parent, ast.Call) and called_name(parent) == _LINEAR and parent.args[1:2]:
        return (_Use.WEIGHT, parent.args[0]) if parent.args[1] is value else (None, None)
    return None, None


def _reordered(a: ast.expr, b: ast.expr, use: _Use, other: ast.expr) -> str:
    """``a @ (b @ c)``, ``(c @ a) @ b`` or ``F.linear(F.linear(x, b.T), a)``."""
    ours, theirs, third = (_factor(one) for one in (a, b, other))
    if use is _Use.LEFT:
        return f"{ours} @ ({theirs} @ {third})"
    if use is _Use.RIGHT:
        return f"({third} @ {ours}) @ {theirs}"
    return f"({third} @ {_turned(b)}) @ {_turned(a)}"


def _factor(value: ast.expr) -> str:
    text = ast.unparse(value)
    plain = (ast.Name, ast.Attribute, ast.Call, ast.Constant, ast.Subscript)
    is_plain = isinstance(value, plain)
    return text if is_plain else f"({text})"


def _turned(value: ast.expr) -> str:
    if isinstance(value, ast.Attribute) and value.attr in _TURNED:
        return _factor(value.value)
    return f"{_factor(value)}.mT"


RULE = ProductOrder()
