"""broadcast: two vectors of n values come out as an n × n table."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.large_tensor import LargeTensor, large_tensor, made_by_its_statement
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import Place, called_name, calls_in
from memprof.source_code.scopes import qualified_name
from memprof.source_code.values import values_of
from memprof.trace import Phase
from memprof.units import format_bytes
from memprof.views.operator_graph import made_by_operators
from memprof.views.window import Window

__all__ = ["RULE"]

_LEAST_SIDE = 16
"""A smaller table takes no more than a few blocks, which have sizes that many share."""
_BYTES = ((4, 4), (2, 2), (8, 8), (1, 4), (1, 8))
"""Of a value in the table and in the vectors: sums and losses in one type, or comparisons, whose
results are booleans, …"""
_OF_NUMBERS = ((4, 4), (4, 8), (4, 2), (4, 1))
"""… or numbers that these are made in the same statement: ``(guess == labels).float()``."""
_ELEMENTWISE = frozenset(
    ("add", "div", "eq", "isclose", "maximum", "minimum", "mul", "ne", "sub", "where")
)
"""Functions of torch that broadcast."""
_COMPARING = ("eq", "isclose", "ne")
_HALF = 2
_OF_HALF = frozenset(("autocast", "bfloat16", "float16", "half"))
"""Names of torch by which a program asks for values of two bytes; and …"""
_ASKING_FOR_HALF = frozenset(("bf16", "fp16", "mixed_precision", "precision"))
"""… arguments of frameworks."""
_PRODUCTS = ("matmul", "bmm", "baddbmm", "mm", "einsum")
"""Functions of torch that make a table of n × n because that is what they are for."""
_OF_PAIRS = ("cartesian_prod", "cdist", "cos_sim", "dot_score", "kron", "meshgrid", "outer")
"""Functions that make a table of all pairs."""
_LOSSES = "torch/nn/modules/loss.py"
_TURNED_ATTRIBUTES = frozenset(("H", "T", "mH", "mT"))
_TURNED_CALLS = ("expand", "permute", "swapaxes", "t", "transpose", "unsqueeze")
"""What gives a tensor another shape so that it broadcasts: who writes that means the table."""
_AFTERWARDS = (Phase.BACKWARD, Phase.OPTIMIZER)
"""No line of the program combines anything there; its stack may end in one that does, besides."""


@dataclass(frozen=True, slots=True, eq=False)
class Table(Match):
    """A table of n × n."""

    side: int = 0


class Broadcast(WasteRule[Table]):
    """Operands of shapes (N, 1) and (N,): the result has N × N values, and is wrong as well."""

    name = "broadcast"
    summary = "operands of different shapes broadcast to a table of n × n"
    fixes = ("reshape", "chunk")
    yields_to = ("grown-by-copy", "diagonal-matrix", "summed-products")

    def matches(self, window: Window) -> Iterator[Table]:
        """The large tensor of the peak, where two of the square root of its values went in."""
        large = large_tensor(window)
        side = _side(window, large) if large is not None else 0
        if large is None or not side:
            return
        rows = np.flatnonzero(large.in_every_step & (window.made_in >= 0))
        yield Table(
            row=large.row,
            rows=large.there,
            nbytes=large.nbytes,
            saving=window.replayed(window.whole(rows)),
            side=side,
        )

    def title(self, match: Table) -> str:
        """Say of what they come."""
        return f"come of broadcasting {match.side} values against {match.side}"

    def advice(self, match: Table, case: Case) -> Iterator[Advice]:
        """Give both the same shape; in parts, where the table is meant."""
        why = (
            "Operands of shapes like (N, 1) and (N,) broadcast to N × N, "
            f"{format_bytes(match.nbytes)}: give both the same shape."
        )
        yield Advice("reshape", why, case.site)
        yield Advice("chunk", "If the table is meant, work through it in parts.", case.site)


def _side(window: Window, large: LargeTensor) -> int:
    """``n`` where the tensor has n × n values and two tensors of n values went in; 0 where not."""
    place, row = large.place, large.row
    if place is None or not _combines(place) or window.phase[row] in _AFTERWARDS:
        return 0
    if _is_meant(place) or not (made_by_its_statement(window, row) or _by_loss(window, row)):
        return 0
    requested = int(window.lives.requested[row])
    earlier = window.lives.alloc < window.lives.alloc[row]
    earlier &= window.lives.free > window.lives.alloc[row]
    if (window.lives.requested[earlier & window.has_owner] == requested).any():
        return 0  # a weight or a gradient of n × n went in, as in an optimizer's step
    if _is_given_table(window, row):
        return 0
    there = window.lives.requested[earlier & ~window.has_owner]
    # Where a loss is of two tables, these are there before it. Of two vectors one may be a part of
    # a larger tensor.
    stacks = window.lives.stack[earlier & ~window.has_owner & (window.lives.requested == requested)]
    least = 1 if _is_of_loss(place) and not (stacks != window.lives.stack[row]).any() else 2
    for width, operand in _OF_NUMBERS if _makes_numbers(place) else _BYTES:
        if not _may_have(place, window, width):
            continue
        side: int = round((requested / width) ** 0.5)
        fits = side > _LEAST_SIDE and side * side * width == requested
        if fits and int((there == side * operand).sum()) >= least:
            return side
    return 0


def _is_given_table(window: Window, row: int) -> bool:
    """Whether operators are known to have made it of what is as large, all on its stack."""
    stack, size = int(window.lives.stack[row]), int(window.lives.requested[row])
    made = made_by_operators(window.operator_graphs)
    known = [one for (at, _), one in made.items() if at == stack and one.size == size]
    return bool(known) and all(one.given >= one.size for one in known)


def _may_have(place: Place, window: Window, width: int) -> bool:
    """Whether values of so many bytes may come of a statement: a table is told by its size alone.

    Of two bytes where the program speaks of half precision, of one where it compares.
    """
    if width == 1:
        return _compares(place)
    return width != _HALF or any(
        (isinstance(node, ast.Attribute) and node.attr in _OF_HALF)
        or (isinstance(node, ast.Name) and node.id in _OF_HALF)
        or (isinstance(node, ast.keyword) and node.arg in _ASKING_FOR_HALF)
        for program in window.programs
        for node in program.nodes
    )


def _compares(place: Place) -> bool:
    is_operator = any(isinstance(one, ast.Compare) for one in ast.walk(place.statement))
    return is_operator or bool(calls_in(place.statement, *_COMPARING))


def _makes_numbers(place: Place) -> bool:
    """Whether a statement compares and has what comes of it as 32 bit numbers."""
    return _compares(place) and bool(calls_in(place.statement, "float"))


def _combines(place: Place) -> bool:
    """Element by element: ``a - b``, ``a == b``, a loss of two tensors; no matrix product.

    Nor one that is scaled or masked, as ``q @ k.mT / sqrt(d)`` is.
    """
    for node in ast.walk(place.statement):
        if isinstance(node, ast.BinOp) and not isinstance(node.op, (ast.MatMult, ast.FloorDiv)):
            sides = (node.left, node.right)
            is_scaled = not isinstance(node.op, ast.Sub) and any(map(_is_product, sides))
            if not is_scaled and not any(isinstance(side, ast.Constant) for side in sides):
                return True
        if isinstance(node, ast.Compare):
            return True
        if isinstance(node, ast.Call) and (
            called_name(node) in _ELEMENTWISE or _is_loss(place, node)
        ):
            return True
    return False


def _is_meant(place: Place) -> bool:
    """Whether the statement turns an operand, or the function one by its name: ``a + b.mT``.

    Or calls what makes a value for every pair of rows: ``torch.cdist(a / s, b / s)``.
    """
    if calls_in(place.statement, *_OF_PAIRS):
        return True
    names = {n.id for n in ast.walk(place.statement) if isinstance(n, ast.Name)}
    bound = (value for name in sorted(names) for value in values_of(place, name, place.statement))
    return _turns(place.statement) or any(one is not None and _turns(one) for one in bound)


def _turns(tree: ast.AST) -> bool:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in _TURNED_ATTRIBUTES:
            return True
        if isinstance(node, ast.Subscript) and any(map(_is_none, ast.walk(node.slice))):
            return True
    return bool(calls_in(tree, *_TURNED_CALLS))


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _by_loss(window: Window, row: int) -> bool:
    """Whether a loss of torch's made it, called as a module."""
    return any(frame.filename.endswith(_LOSSES) for frame in window.stack(row))


def _is_of_loss(place: Place) -> bool:
    calls = (node for node in ast.walk(place.statement) if isinstance(node, ast.Call))
    return any(_is_loss(place, call) for call in calls)


def _is_loss(place: Place, call: ast.Call) -> bool:
    """``F.mse_loss(a, b)``, or a call of what is made by ``nn.MSELoss()`` or its like."""
    if qualified_name(place, call.func).startswith("torch.") and called_name(call).endswith(
        "_loss"
    ):
        return True
    values = values_of(place, ast.unparse(call.func))
    return any(one is not None and called_name(one).endswith("Loss") for one in values)


def _is_product(expression: ast.expr) -> bool:
    """True if a product of matrices is in it, by ``@`` or by a function."""
    at = (isinstance(n, ast.BinOp) and isinstance(n.op, ast.MatMult) for n in ast.walk(expression))
    return any(at) or bool(calls_in(expression, *_PRODUCTS))


RULE = Broadcast()
