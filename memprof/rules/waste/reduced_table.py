"""reduced-table: a large table is made of small tensors, and only reduced."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

from memprof.rules.case import Case
from memprof.rules.operator_chains import (
    BROADCASTING,
    LOOKING_UP,
    MULTIPLYING,
    NORMS,
    PICKING,
    POWERS,
    REDUCING,
    SUBTRACTING,
    SUMS,
    TIMES,
    Chain,
    chain_of,
)
from memprof.rules.rule import EVERY_OTHER, Advice, Match, WasteRule
from memprof.rules.same_memory import ANY_GROWTH
from memprof.source_code.frame_kind import is_of_library
from memprof.source_code.program import Place, called_name, place_of
from memprof.trace import Frame
from memprof.units import format_bytes
from memprof.views.operator_graph import Made, made_by_operators
from memprof.views.peak_without import Cuts, Saving
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.15
"""Of the peak, that the tables take, and that goes without them."""
_PARTS = 8
"""In which it is made then; each is this part of it."""
_SEVERAL = 3
"""Tables in a step, one after the other: it goes in parts already."""


_ORDERS = frozenset(("ge", "gt", "le", "lt"))
_TURNING = ("reshape", "unsqueeze", "view")
"""Methods that make a column, or a row, of a vector."""


class _What(Enum):
    DISTANCES = auto()
    PRODUCTS = auto()
    MATRICES = auto()
    ORDERS = auto()
    OTHER = auto()


@dataclass(frozen=True, slots=True, eq=False)
class Table(Match):
    """Tables, and what is made of them."""

    given: int = 0
    """Bytes that the first is made of."""
    ends: str = ""
    """The operators that read them and make no table."""
    reader: Frame | None = None
    """The line of one of these."""
    what: _What = _What.OTHER
    learns: bool = False
    """A backward pass comes after them."""
    in_parts: Saving | None = None
    """The peak with and without the table, of which one part at a time is there."""


class ReducedTable(WasteRule[Table]):
    """``torch.exp(-(grid[:, None] - x[None]) ** 2).sum(1)``: all pairs are there for their sums."""

    name = "reduced-table"
    summary = "a large table is made of small tensors, and only reduced"
    fixes = ("cdist", "einsum", "multiply_by_kind", "cumulative_sum", "chunk")
    yields_to = EVERY_OTHER
    other_operators = True
    yields_beyond = (ANY_GROWTH,)

    def matches(self, window: Window) -> Iterator[Table]:
        """Each table that no operator reads but to reduce it, or to make another like it."""
        made = made_by_operators(window.operator_graphs)
        for one in made.values():
            if _is_table(one):
                # Matrices that were looked up are for products, a table is for none.
                ends = MULTIPLYING if one.operator in LOOKING_UP else REDUCING | PICKING
                chain = chain_of(made, one, ends, parts=one.operator not in LOOKING_UP)
                match = _match(window, one, chain) if chain is not None else None
                if match is not None:
                    yield match

    def title(self, match: Table) -> str:
        """Say of what it is made and what for."""
        line = f" in line {match.reader.line}" if match.reader is not None else ""
        for_what = "multiplied" if match.what is _What.MATRICES else "reduced"
        made_of = format_bytes(match.given)
        return f"are made of {made_of} of tensors, and only {for_what} ({match.ends}{line})"

    def advice(self, match: Table, case: Case) -> Iterator[Advice]:
        """Have it computed without the table, or in parts."""
        nbytes = format_bytes(match.nbytes)
        if match.what is _What.DISTANCES:
            why = (
                f"Of {nbytes} of differences only their sums are read: where these are distances, "
                "`torch.cdist` computes them without (`.square()` for their squares, `p=1` for "
                "sums; scale the points first)."
            )
            yield Advice("cdist", why, case.site)
        if match.what is _What.PRODUCTS:
            why = (
                f"Of {nbytes} of products only sums are read: a product of matrices, or "
                "`torch.einsum`, adds them up as it makes them."
            )
            yield Advice("einsum", why, case.site)
        if match.what is _What.MATRICES:
            why = (
                f"{nbytes} are copies of few matrices, one for each row that is multiplied by it: "
                "multiply all rows of one kind together."
            )
            yield Advice("multiply_by_kind", why, case.site)
        if match.what is _What.ORDERS:
            why = (
                f"{nbytes} say for every pair which one is later, and are only summed: sort by "
                "that, and let `cumsum` add up in this order (`logcumsumexp` of logarithms)."
            )
            yield Advice("cumulative_sum", why, case.site)
        why = f"{nbytes} are there at once, of which each part is read by itself: go in parts"
        kept = ", each under `torch.utils.checkpoint`, which keeps none of them" * match.learns
        yield Advice("chunk", f"{why}{kept}.", case.site, saving=match.in_parts)


def _is_table(one: Made) -> bool:
    """Whether an operator has made much of little."""
    is_one = one.operator in BROADCASTING | LOOKING_UP
    return is_one and 0 < TIMES * one.given <= one.size


def _match(window: Window, first: Made, chain: Chain) -> Table | None:
    lives = window.lives
    rows = chain.rows(window)
    there = rows[window.at_peak[rows]]
    nbytes = int(lives.size[there].sum())
    if not len(there) or window.share(nbytes) < _LEAST_SHARE:
        return None
    own = rows[lives.stack[rows] == first.node[0]]
    row = int(own[0] if len(own) else there[0])
    if is_of_library(window.stack(row)) or _is_in_parts(window, own):
        return None
    if not chain.is_done(window):
        return None
    what = _what(first, chain)
    if what is _What.OTHER and _is_of_order(first, chain, place_of(window.frame_of(row))):
        what = _What.ORDERS
    learns = window.learns_after(int(lives.alloc[row]))
    gone = lives.size[rows] - lives.size[rows] // _PARTS
    in_parts = window.replayed(Cuts(rows, lives.alloc[rows], lives.free[rows], gone))
    saving = in_parts
    if what is not _What.OTHER:  # what is made of it is there, and its gradient
        made = max(read.size for read in chain.ends) * (1 + learns)
        saving = window.replayed(window.whole(rows)).keeping(made)
    if window.share(saving.bytes) < _LEAST_SHARE:
        return None
    return Table(
        row=row,
        rows=there,
        nbytes=nbytes,
        saving=saving,
        tentative=chain.may_be_read_unseen(window),
        given=first.given,
        ends=" and ".join(f"`{one}`" for one in sorted(chain.operators)),
        reader=chain.reader(window),
        what=what,
        learns=learns,
        in_parts=in_parts,
    )


def _is_of_order(first: Made, chain: Chain, place: Place | None) -> bool:
    """Whether a table says of all pairs of one vector which is the larger, and that is summed.

    By its statement, ``t[None] >= t[:, None]``. Nothing else as large goes in on the way: sums of
    two orders at once, as a concordance counts, are no cumulative sums.
    """
    others = (one for node, one in chain.nodes.items() if node != first.node)
    if first.operator not in _ORDERS or not chain.operators <= SUMS:
        return False
    return all(one.given < 2 * one.size for one in others) and any(
        isinstance(node, ast.Compare)
        and len(node.ops) == 1
        and isinstance(node.ops[0], (ast.Gt, ast.GtE, ast.Lt, ast.LtE))
        and ast.unparse(_unturned(node.left)) == ast.unparse(_unturned(node.comparators[0]))
        for node in (ast.walk(place.statement) if place is not None else ())
    )


def _unturned(value: ast.expr) -> ast.expr:
    """The vector of ``t[:, None]``, ``t.unsqueeze(1)`` or ``t.view(-1, 1)``."""
    while True:
        if isinstance(value, ast.Subscript) and any(map(_is_none, ast.walk(value.slice))):
            value = value.value
        elif called_name(value) in _TURNING and isinstance(value, ast.Call):
            if not isinstance(value.func, ast.Attribute):
                return value
            value = value.func.value
        else:
            return value


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_in_parts(window: Window, tables: Ints) -> bool:
    """Whether most steps make one table after the other, of which one at a time is there.

    The first may have many, where steps were not known yet.
    """
    _, counts = np.unique(window.made_in[tables], return_counts=True)
    several = len(counts) > 0 and bool(np.median(counts) >= _SEVERAL)
    return several and int(window.at_peak[tables].sum()) <= 1


def _what(first: Made, chain: Chain) -> _What:
    if first.operator in LOOKING_UP:
        return _What.MATRICES
    operators = {one.operator for one in chain.nodes.values()}
    if first.operator in SUBTRACTING and chain.operators <= NORMS:
        others = {one.operator for node, one in chain.nodes.items() if node != first.node}
        is_power = bool(others) or not chain.operators <= SUMS
        return _What.DISTANCES if others <= POWERS and is_power else _What.OTHER
    if operators == {"mul"} and chain.operators <= SUMS:
        return _What.PRODUCTS
    return _What.OTHER


RULE = ReducedTable()
