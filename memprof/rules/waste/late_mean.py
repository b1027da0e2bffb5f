"""late-mean: a linear layer is applied to each position, of whose results the mean is taken."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.large_tensor import large_tensor
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.idioms import keyword
from memprof.source_code.program import Place, called_name, calls_in, place_of
from memprof.source_code.values import values_of
from memprof.trace import Category, Phase
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]

_AVERAGES = ("mean",)
_POSITIONS = frozenset(("1", "-2", "(1,)", "[1]"))
"""The dimension of positions, as it is written: the last one is that of features."""
_LINEAR = "Linear"
_FLOAT = 4
"""Bytes of a value in float32."""


@dataclass(frozen=True, slots=True, eq=False)
class LateMean(Match):
    """The call, and the same in the other order."""

    written: str = ""
    instead: str = ""
    place: Place | None = None
    """The statement of both."""


class LateMeanRule(WasteRule[LateMean]):
    """`self.project(frames).mean(dim=1)`: the mean of a linear layer is that of what goes in."""

    name = "late-mean"
    summary = "a linear layer is applied to each position, of whose results the mean is taken"
    fixes = ("mean_first",)
    yields_to = ("merged-adapters",)

    def matches(self, window: Window) -> Iterator[LateMean]:
        """The large tensor of the peak, made by such a statement or in its backward pass."""
        large = large_tensor(window)
        if large is None:
            return
        for row in large.there.tolist():
            of_backward = window.phase[row] == Phase.BACKWARD
            site = int((window.origin_site if of_backward else window.site)[row])
            place = place_of(window.owners.sites.frames[site])
            calls = _calls(place) if place is not None else None
            if place is None or calls is None:
                continue
            if not _has_positions(window, large.row, site):
                continue
            alike = large.in_every_step & ((window.origin_site == site) | (window.site == site))
            there = np.flatnonzero(alike & window.at_peak)
            if not len(there):
                continue
            forward = np.flatnonzero(alike & (window.phase != Phase.BACKWARD))
            yield LateMean(
                row=int(forward[0]) if len(forward) else row,
                rows=there,
                nbytes=int(window.lives.size[there].sum()),
                saving=window.replayed(window.whole(np.flatnonzero(alike))),
                written=calls[0],
                instead=calls[1],
                place=place,
            )
            return

    def title(self, match: LateMean) -> str:
        """Say what they are."""
        return f"are what a linear layer makes of each position, of which `{match.written}` is read"

    def advice(self, match: LateMean, case: Case) -> Iterator[Advice]:
        """Take the mean of what goes in."""
        why = (
            f"The mean of a linear layer's results is its result for the mean: `{match.instead}` "
            f"makes one row where {format_bytes(match.nbytes)} hold one for each position."
        )
        yield Advice("mean_first", why, match.place or case.site, typed=match.instead)


def _has_positions(window: Window, row: int, site: int) -> bool:
    """Whether what the layer makes has more than rows and features, by the bytes of its mean.

    The bias tells how wide a row is. Of a matrix a mean along dimension 1 is one number for each
    row; of what has positions it is whole rows.
    """
    lives = window.lives
    size = int(lives.requested[row])
    of_layer = (window.category == Category.PARAMETER) & (window.module == window.module[row])
    width = int(lives.requested[of_layer].min(initial=size))
    made = (window.site == site) & (window.phase != Phase.BACKWARD) & (lives.requested < size)
    sizes = np.unique(lives.requested[made]).tolist()
    numbers = size // width * _FLOAT
    return width < size and numbers not in sizes and any(one % width == 0 for one in sizes)


def _calls(place: Place) -> tuple[str, str] | None:
    """The mean of a linear layer's result in a statement, and the layer's result of a mean."""
    for call in calls_in(place.statement, *_AVERAGES):
        layer = call.func.value if isinstance(call.func, ast.Attribute) else None
        along = keyword(call, "dim") or next(iter(call.args), None)
        if along is None or ast.unparse(along) not in _POSITIONS:
            continue
        if not isinstance(layer, ast.Call) or len(layer.args) != 1 or layer.keywords:
            continue
        if not _is_linear(place, layer.func):
            continue
        given, rest = ast.unparse(layer.args[0]), ast.unparse(call)[len(ast.unparse(layer)) :]
        return ast.unparse(call), f"{ast.unparse(layer.func)}({given}{rest})"
    return None


def _is_linear(place: Place, layer: ast.expr) -> bool:
    """Whether all that the name of a layer is bound to in the file are linear layers."""
    if not isinstance(layer, (ast.Name, ast.Attribute)):
        return False
    made = list(values_of(place, ast.unparse(layer)))
    return bool(made) and all(one is not None and called_name(one) == _LINEAR for one in made)


RULE = LateMeanRule()
