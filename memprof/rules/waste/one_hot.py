"""one-hot: a table of zeros and ones picks a value per row, where the indices would do."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import numpy as np

from memprof.rules.case import Case
from memprof.rules.large_tensor import LargeTensor, large_tensor
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import Place, assigned, bound_names, called_name, calls_in
from memprof.units import format_bytes
from memprof.views.window import Ints, Window

__all__ = ["RULE", "picking_statement"]

_MAKER = "one_hot"
_NARROWER = (1, 2, 4)
"""By which a copy in a floating type is smaller than the table of int64."""


class OneHot(WasteRule[Match]):
    """`(F.one_hot(target, classes) * log_p).sum(-1)`: a dense table for one value of each row."""

    name = "one-hot"
    summary = "a dense one-hot table is multiplied and summed to pick one value of each row"
    fixes = ("class_indices",)

    def matches(self, window: Window) -> Iterator[Match]:
        """The large tensor of the peak, made by `one_hot` and only summed after a product."""
        large = large_tensor(window)
        if large is None or large.place is None:
            return
        picking = picking_statement(large.place)
        if picking is None:
            return
        rows = _made_for(window, large, picking)
        there = rows[window.at_peak[rows]]
        yield Match(
            row=large.row,
            rows=there,
            nbytes=int(window.lives.size[there].sum()),
            saving=window.replayed(window.whole(rows)),
        )

    def title(self, match: Match) -> str:  # noqa: ARG002 - every match reads the same
        """Say what they are, and what for."""
        return "are a one-hot table that picks one value of each row, and what is made of it"

    def advice(self, match: Match, case: Case) -> Iterator[Advice]:
        """Give the indices themselves."""
        why = (
            f"{format_bytes(match.nbytes)} of zeros and ones are made to pick one value of each "
            "row: `F.cross_entropy` takes the indices, and so does "
            "`x.gather(-1, index[..., None])`; `scatter_add` sums these for each class, and "
            "`bincount` counts."
        )
        yield Advice("class_indices", why, case.site)


def picking_statement(place: Place) -> ast.stmt | None:
    """The statement that sums a product with the table that a statement makes; None without.

    Also none where the function reads the table anywhere else, but to count its rows by a sum.
    """
    makers = [call for call in calls_in(place.statement) if called_name(call) == _MAKER]
    if not makers:
        return None
    names = {target.id for target in bound_names(place.statement) if isinstance(target, ast.Name)}
    reads = [
        node
        for node in ast.walk(place.scope)
        if isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load)
    ]
    functions = [call.func for call in calls_in(place.scope, "sum")]
    counted = {id(one.value) for one in functions if isinstance(one, ast.Attribute)}
    picking = [node for node in reads if id(node) not in counted]
    for total in calls_in(place.scope, "sum"):
        product = _summed(total, place)
        if product is None:
            continue
        inside = set(map(id, ast.walk(product)))
        of_table = any(id(node) in inside for node in (*makers, *picking))
        if of_table and all(id(node) in inside for node in picking):
            at = place.program.at(product.lineno)
            return at.statement if at is not None else None
    return None


def _summed(total: ast.Call, place: Place) -> ast.BinOp | None:
    """The product that ``(a * b).sum(-1)`` or ``torch.sum(a * b, -1)`` sums; by a name, too."""
    receiver = total.func.value if isinstance(total.func, ast.Attribute) else None
    for summed in (receiver, *total.args[:1]):
        value = summed
        if isinstance(summed, ast.Name):
            bound = (
                value
                for node in ast.walk(place.scope)
                for target, value in assigned(node)
                if isinstance(target, ast.Name) and target.id == summed.id
            )
            value = next(bound, None)
        while isinstance(value, ast.UnaryOp):
            value = value.operand
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
            return value
    return None


def _made_for(window: Window, large: LargeTensor, picking: ast.stmt) -> Ints:
    """The table, its copy in a floating type and the product, in every step.

    Where the other factor is computed in the same statement the copies cannot be told from it:
    then only the table counts.
    """
    lives, place = window.lives, large.place
    table = lives.stack == lives.stack[large.row]
    table &= lives.requested == lives.requested[large.row]
    products = [node for node in ast.walk(picking) if isinstance(node, ast.BinOp)]
    computes = any(
        called_name(call) not in {_MAKER, "float", "to", "type", "type_as", "half", "bfloat16"}
        for product in products
        for call in ast.walk(product)
        if isinstance(call, ast.Call)
    )
    if place is None or computes:
        return np.flatnonzero(table)
    lines = {*range(picking.lineno, (picking.end_lineno or picking.lineno) + 1)}
    own = [
        row
        for row, frame in enumerate(window.owners.sites.frames)
        if frame.filename == place.program.filename and frame.line in lines
    ]
    sizes = [int(lives.requested[large.row]) // by for by in _NARROWER]
    copies = np.isin(window.site, own) & np.isin(lives.requested, sizes)
    return np.flatnonzero(table | copies)


RULE = OneHot()
