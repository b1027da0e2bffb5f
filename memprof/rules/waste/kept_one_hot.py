"""kept-one-hot: a one-hot table of a whole data set is kept, of which each step reads a part."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import numpy as np

from memprof.rules.case import Case
from memprof.rules.large_tensor import made_by_its_statement
from memprof.rules.lifespan import stays_near_peak
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import (
    Place,
    assigned,
    bound_names,
    called_name,
    calls_in,
    place_of,
)
from memprof.source_code.scopes import nodes_around, reads_of
from memprof.source_code.values import values_of
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak."""
_MAKER = "one_hot"
_DATA_SETS = frozenset(("TensorDataset", "len"))
"""Calls that take a table and read its rows later, or nothing of it but how many there are."""
_BLANK = frozenset(("new_zeros", "zeros", "zeros_like"))
"""What makes a table of zeros, into which the program writes a one for each row."""
_OF_SHAPE = frozenset(("device", "dtype", "ndim", "shape", "size"))


class KeptOneHot(WasteRule[Match]):
    """`self.inputs = F.one_hot(text, characters).float()`, sliced for each batch."""

    name = "kept-one-hot"
    summary = "a one-hot table of a whole data set is kept"
    fixes = ("class_indices",)

    def matches(self, window: Window) -> Iterator[Match]:
        """Tables that stay over the steps, and of which every read takes a part."""
        mask = stays_near_peak(window)
        for site in window.large_sites(mask, _LEAST_SHARE):
            place = place_of(window.owners.sites.frames[site])
            of_site = mask & (window.site == site)
            row = window.largest(of_site)
            if place is None or not made_by_its_statement(window, row) or not _is_kept(place):
                continue
            # The table of int64 that it is converted from is made on the way.
            every = (window.site == site) & ~window.has_owner
            yield Match(
                row=row,
                rows=np.flatnonzero(of_site),
                nbytes=window.bytes_of(of_site),
                saving=window.replayed(window.whole(np.flatnonzero(every))),
            )
            return

    def title(self, match: Match) -> str:  # noqa: ARG002 - every match reads the same
        """Say what is kept."""
        return "are a one-hot table of all the data, of which a part is read at a time"

    def advice(self, match: Match, case: Case) -> Iterator[Advice]:
        """Keep the indices, and encode each batch."""
        yield Advice(
            "class_indices",
            f"{format_bytes(match.nbytes)} of zeros and ones are kept for all of the data: keep "
            "the indices, and call `F.one_hot` on those of each batch, or let `nn.Embedding` take "
            "them.",
            case.site,
        )


def _is_kept(place: Place) -> bool:
    """Whether a statement binds a one-hot table to a name of which only parts are read."""
    statement = place.statement
    targets = bound_names(statement)
    if not isinstance(statement, ast.Assign) or len(targets) != 1:
        return False
    target, scope = targets[0], place.scope
    if isinstance(target, ast.Attribute) and place.class_ is not None:
        scope = place.class_
    elif not isinstance(target, ast.Name):
        return False
    is_blank = called_name(statement.value) in _BLANK
    if not calls_in(statement.value, _MAKER) and not (is_blank and _has_ones(place, scope, target)):
        return False
    loads = _loads(scope, target)
    return bool(loads) and all(_is_of_part(one, nodes_around(scope, one)[-1]) for one in loads)


def _loads(scope: ast.AST, target: ast.expr) -> list[ast.expr]:
    """Where a name or an attribute is read."""
    if isinstance(target, ast.Name):
        return [node for node, _ in reads_of(scope, target.id)]
    text = ast.unparse(target)
    nodes = (node for node in ast.walk(scope) if isinstance(node, ast.Attribute))
    return [one for one in nodes if isinstance(one.ctx, ast.Load) and ast.unparse(one) == text]


def _has_ones(place: Place, scope: ast.AST, target: ast.expr) -> bool:
    """Whether a function writes ones into a table, by indices that it looks up, and nothing else.

    Nor does another method, into one that an attribute has.

    ``x[i, t, index_of[character]] = 1.0``: what it looks them up in has the classes.
    """
    text = ast.unparse(target)
    written = [
        (one, value)
        for node in ast.walk(scope)
        for one, value in assigned(node)
        if isinstance(one, ast.Subscript) and ast.unparse(one.value) == text
    ]
    return bool(written) and all(
        isinstance(value, ast.Constant) and value.value == 1 and _is_looked_up(place, one.slice)
        for one, value in written
    )


def _is_looked_up(place: Place, index: ast.expr) -> bool:
    """Whether of several indices the last is, or comes of, an entry under a key: ``of[name]``."""
    if not isinstance(index, ast.Tuple) or not index.elts:
        return False
    last = index.elts[-1]
    values = list(values_of(place, last.id)) if isinstance(last, ast.Name) else [last]
    return bool(values) and all(one is not None and _has_entry(one) for one in values)


def _has_entry(value: ast.expr) -> bool:
    return any(
        isinstance(node, ast.Subscript) and not isinstance(node.slice, (ast.Slice, ast.Tuple))
        for node in ast.walk(value)
    )


def _is_of_part(value: ast.expr, parent: ast.AST) -> bool:
    """Whether the expression around a value takes a part of it, hands it on or asks its size."""
    if isinstance(parent, ast.Attribute):
        return parent.attr in _OF_SHAPE
    if isinstance(parent, ast.Call):
        return called_name(parent) in _DATA_SETS
    return isinstance(parent, ast.Subscript) and parent.value is value


RULE = KeptOneHot()
