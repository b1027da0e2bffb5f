"""shuffled-copy: all of a data set is copied in another order, to be gone through in batches."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import Place, assigned, called_name, place_of
from memprof.source_code.scopes import parameters, reads_of
from memprof.source_code.values import values_of
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak, in such copies of one line."""
_ORDER = "randperm"
_OF_LENGTH = frozenset(("device", "dtype", "shape", "size"))


@dataclass(frozen=True, slots=True, eq=False)
class ShuffledCopy(Match):
    """What is copied, the variable of the copy, and that of the order."""

    source: str = ""
    name: str = ""
    order: str = ""


class ShuffledCopyRule(WasteRule[ShuffledCopy]):
    """`x = x[perm]` at the beginning of an epoch, and `x[i : i + batch]` for its batches."""

    name = "shuffled-copy"
    summary = "a data set is copied in another order, to be gone through in batches"
    fixes = ("index_batches",)

    def matches(self, window: Window) -> Iterator[ShuffledCopy]:
        """What a line makes by indices in random order, and slices alone are read of."""
        if window.peak.event < 0:
            return
        lives = window.lives
        there = window.at_peak & ~window.has_owner & (lives.alloc >= 0)
        for site in window.large_sites(there, _LEAST_SHARE):
            place = place_of(window.owners.sites.frames[site])
            copy = _copy(place) if place is not None else None
            if copy is None:
                continue
            every = np.flatnonzero((window.site == site) & ~window.has_owner & (lives.alloc >= 0))
            rows = every[window.at_peak[every]]
            yield ShuffledCopy(
                row=int(rows[lives.size[rows].argmax()]),
                rows=rows,
                nbytes=int(lives.size[rows].sum()),
                saving=window.replayed(window.whole(every)),
                source=copy[0],
                name=copy[1],
                order=copy[2],
            )
            return

    def title(self, match: ShuffledCopy) -> str:
        """Say of what they are copies."""
        return f"are `{match.source}` once more, in another order, of which batches are taken"

    def advice(self, match: ShuffledCopy, case: Case) -> Iterator[Advice]:
        """Take each batch by its part of the order."""
        why = (
            f"Batches are parts of a copy, {format_bytes(match.nbytes)}: take each of "
            f"`{match.source}` itself, by its part of `{match.order}`."
        )
        typed = f"{match.source}[{match.order}[i : i + batch]]"
        yield Advice("index_batches", why, case.site, typed=typed)


def _copy(place: Place) -> tuple[str, str, str] | None:
    """What a statement copies in random order, into which variable, and the variable of the order.

    Only where nothing but slices is read of the copy.
    """
    if not isinstance(place.statement, ast.Assign):
        return None
    for target, value in assigned(place.statement):
        if not isinstance(target, ast.Name) or not isinstance(value, ast.Subscript):
            continue
        order = value.slice
        if not isinstance(order, ast.Name):
            continue
        made = [one for one in values_of(place, order.id) if one is not None]
        if not made or not all(called_name(one) == _ORDER for one in made):
            continue
        source = ast.unparse(value.value)
        is_given = place.function is not None and source in parameters(place.function)
        if source == target.id and not is_given:
            continue  # the set itself is gone then
        if _is_sliced(place, target.id):
            return source, target.id, order.id
    return None


def _is_sliced(place: Place, name: str) -> bool:
    """Whether all later reads of a variable take slices of it, or ask for its length."""
    sliced = False
    for load, around in reads_of(place.scope, name):
        if load.lineno <= place.line:
            continue
        parent = around[-1]
        if isinstance(parent, ast.Subscript) and parent.value is load:
            if not isinstance(parent.slice, ast.Slice):
                return False
            sliced = True
        elif not (called_name(parent) == "len" or _asks_for_length(parent)):
            return False
    return sliced


def _asks_for_length(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in _OF_LENGTH


RULE = ShuffledCopyRule()
