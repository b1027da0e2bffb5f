"""normalized-anew: a table that stays is normalized whole each time it is searched."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.large_tensor import made_by_module
from memprof.rules.lifespan import outlive_steps
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import (
    FUNCTIONS,
    Place,
    bound_names,
    called_name,
    calls_in,
    place_of,
)
from memprof.source_code.scopes import parameters, qualified_name
from memprof.units import format_bytes
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak."""
_FEWEST = 4
"""Steps in which it is made: a table that is stored may be normalized once or twice."""
_NEARLY = 0.9
"""Of the bytes that are made, that the table must have at least: a part of it may be asked for."""
_NORMALIZE = "torch.nn.functional.normalize"
_NORMS = frozenset(("norm", "vector_norm"))
_VIEWS = frozenset(("detach", "t", "transpose", "view"))


@dataclass(frozen=True, slots=True, eq=False)
class NormalizedAnew(Match):
    """The table."""

    table: str = ""


class NormalizedAnewRule(WasteRule[NormalizedAnew]):
    """`F.normalize(self.vectors, dim=-1)` in each search, of vectors that stay."""

    name = "normalized-anew"
    summary = "a table that stays is normalized whole each time it is searched"
    fixes = ("normalize_once",)

    def matches(self, window: Window) -> Iterator[NormalizedAnew]:
        """What a line normalizes of a table that outlives the steps, again and again."""
        lives = window.lives
        made = ~window.has_owner & (lives.alloc >= 0) & ~outlive_steps(window)
        for site in window.large_sites(made & window.at_peak, _LEAST_SHARE):
            place = place_of(window.owners.sites.frames[site])
            table = _normalized(place) if place is not None else None
            rows = np.flatnonzero(made & (window.site == site))
            rows = rows[2 * lives.size[rows] >= lives.size[rows].max()]  # no norms beside it
            if table is None or len(np.unique(window.made_in[rows])) < _FEWEST:
                continue
            row = int(rows[window.at_peak[rows]][0])
            is_learned = window.learns_after(int(lives.alloc[row]))
            if is_learned or made_by_module(window, row) or not _stays(window, rows):
                continue
            there = rows[window.at_peak[rows]]
            yield NormalizedAnew(
                row=row,
                rows=there,
                nbytes=int(lives.size[there].sum()),
                saving=window.replayed(window.whole(rows)),
                table=ast.unparse(table),
            )
            return

    def title(self, match: NormalizedAnew) -> str:
        """Say of what they are copies."""
        return f"are `{match.table}`, normalized anew each time"

    def advice(self, match: NormalizedAnew, case: Case) -> Iterator[Advice]:
        """Store it as it is to be compared."""
        yield Advice(
            "normalize_once",
            f"All rows of `{match.table}` are divided by their norms at each call, "
            f"{format_bytes(match.nbytes)} as a second table: normalize each row when it is "
            "stored, and compare with the table itself. Or keep the norms, one number for each "
            "row, and divide the results by them.",
            case.site,
        )


def _normalized(place: Place) -> ast.expr | None:
    """What a statement normalizes, where that is not made in its own function; else None.

    ``F.normalize(self.vectors[:n], dim=-1)``, ``table / table.norm(dim=1, keepdim=True)``.
    """
    for call in calls_in(place.statement, "normalize"):
        given = call.args[0] if call.args else None
        if qualified_name(place, call.func) != _NORMALIZE:
            continue  # pictures are normalized, too, by their mean and deviation
        if given is not None and _is_kept(place, given):
            return _whole(given)
    for node in ast.walk(place.statement):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            norm = node.right
            is_norm = called_name(norm) in _NORMS
            if is_norm and _is_in(_whole(node.left), norm) and _is_kept(place, node.left):
                return _whole(node.left)
    return None


def _is_in(value: ast.expr, node: ast.AST) -> bool:
    """Whether an expression is part of another."""
    text = ast.unparse(value)
    return any(isinstance(one, ast.expr) and ast.unparse(one) == text for one in ast.walk(node))


def _whole(value: ast.expr) -> ast.expr:
    """What a slice or a view is of: ``self.vectors`` of ``self.vectors[:n].detach()``."""
    while True:
        if isinstance(value, ast.Subscript):
            value = value.value
        elif isinstance(value, ast.Call) and called_name(value) in _VIEWS:
            if not isinstance(value.func, ast.Attribute):
                return value
            value = value.func.value
        else:
            return value


def _is_kept(place: Place, value: ast.expr) -> bool:
    """Whether a value is an attribute, or a variable of the file or of a function around.

    What a function is given may have been computed for this very call.
    """
    whole = _whole(value)
    if isinstance(whole, ast.Attribute):
        return True
    function = place.function
    if not isinstance(whole, ast.Name) or function is None:
        return False
    bound = {
        one.id
        for node in ast.walk(function)
        if isinstance(node, ast.stmt) and not isinstance(node, FUNCTIONS)
        for one in bound_names(node)
        if isinstance(one, ast.Name)
    }
    return whole.id not in bound | {*parameters(function)}


def _stays(window: Window, rows: Ints) -> bool:
    """Whether a tensor of about their size outlives the steps, which no layer has."""
    lives = window.lives
    size = int(lives.size[rows].max())
    staying = outlive_steps(window) & window.at_peak & ~window.has_owner
    return bool((lives.size[staying] >= _NEARLY * size).any())


RULE = NormalizedAnewRule()
