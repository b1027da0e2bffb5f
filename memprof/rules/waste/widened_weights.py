"""widened-weights: a layer keeps its narrow weights, and a wider copy of them beside those."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.lifespan import stays_near_peak
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import Place, bound_names, calls_in, place_of, root_name
from memprof.source_code.verbs import CONVERTING
from memprof.units import format_bytes
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak."""
_WIDER = (4, 2)
"""Times the bytes: float32 of int8, and of half precision, or half precision of int8."""
_LEAST_ROWS = 2
"""One weight more is no larger than what is made anew in each call."""
_FIRST = "__init__"


@dataclass(frozen=True, slots=True, eq=False)
class WidenedWeights(Match):
    """The statement that keeps the copy, and the attribute."""

    place: Place | None = None
    name: str = ""
    largest: int = 0
    """Bytes of the largest copy: so much is there while a layer computes."""


class WidenedWeightsRule(WasteRule[WidenedWeights]):
    """`if self.weight is None: self.weight = self.dequantize()` in the forward of a layer."""

    name = "widened-weights"
    summary = "layers keep their narrow weights and a wider copy of them"
    fixes = ("del_ref",)

    def matches(self, window: Window) -> Iterator[WidenedWeights]:
        """Conversions that layers keep, each beside a part of a model with as many elements."""
        lives = window.lives
        mask = stays_near_peak(window)
        for site in window.large_sites(mask, _LEAST_SHARE):
            rows = np.flatnonzero(mask & (window.site == site))
            row = int(rows[np.argmax(lives.size[rows])])
            place = _kept_at(window, row)
            if len(rows) < _LEAST_ROWS or place is None or not _are_wider(window, rows):
                continue
            yield WidenedWeights(
                row=row,
                rows=rows,
                nbytes=int(lives.size[rows].sum()),
                saving=window.replayed(window.whole(rows[rows != row])),
                place=place,
                name=ast.unparse(bound_names(place.statement)[0]),
                largest=int(lives.size[row]),
            )
            return

    def title(self, match: WidenedWeights) -> str:
        """Say of what they are copies."""
        return f"are `{match.name}`, a wider copy of each layer's own weights, which stay too"

    def advice(self, match: WidenedWeights, case: Case) -> Iterator[Advice]:
        """Let each layer widen its weights for the call."""
        at = match.place
        place = case.place_at(at.program.filename, at.line) if at is not None else None
        yield Advice(
            "del_ref",
            f"Narrow weights save nothing while {format_bytes(match.nbytes)} of wider ones are "
            f"kept beside them: make `{match.name}` a variable of the call, so that only one "
            f"layer's is there at a time ({format_bytes(match.largest)} at the most). If the "
            "wider ones are wanted for speed, drop the narrow ones.",
            place or case.site,
        )


def _are_wider(window: Window, rows: Ints) -> bool:
    """Whether each one's module has a part of as many elements, in a type of fewer bytes."""
    requested, modules = window.lives.requested, window.module
    copies = Counter(zip(modules[rows].tolist(), requested[rows].tolist(), strict=True))
    own = np.flatnonzero(window.has_owner & window.stays & (modules > 0))
    of_modules = modules[own].tolist()
    return any(
        not copies - Counter(zip(of_modules, (requested[own] * times).tolist(), strict=True))
        for times in _WIDER
    )


def _kept_at(window: Window, row: int) -> Place | None:
    """The statement of a layer's forward that keeps what one of its methods converts, if any."""
    frames = window.user_frames(window.stack(row))[:2]
    places = [place for place in map(place_of, frames) if place is not None]
    converted = calls_in(places[0].statement, *CONVERTING) if places else []
    if not any(root_name(call.func) == "self" for call in converted):
        return None
    if not isinstance(places[0].statement, ast.Return):
        places = places[:1]
    keeping = places[-1]
    targets = bound_names(keeping.statement)
    is_of_layer = keeping.class_ is not None and keeping.class_ is places[0].class_
    if not is_of_layer or not _is_layer(keeping.class_) or len(targets) != 1:
        return None
    if keeping.function is None or keeping.function.name == _FIRST:
        return None
    return keeping if isinstance(targets[0], ast.Attribute) else None


def _is_layer(class_: ast.ClassDef | None) -> bool:
    return class_ is not None and any(
        isinstance(one, ast.FunctionDef) and one.name == "forward" for one in class_.body
    )


RULE = WidenedWeightsRule()
