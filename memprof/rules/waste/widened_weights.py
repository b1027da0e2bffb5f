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
from memprof.source_code.values import values_of
from memprof.source_code.verbs import CONVERTING
from memprof.units import format_bytes
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak."""
_WIDER = (4, 2, 8)
"""Times the bytes: float32 of int8, and of half precision, or half precision of int8; float32 of
two numbers in a byte."""
_LEAST_ROWS = 2
"""One weight more is no larger than what is made anew in each call."""
_FIRST = "__init__"
_DEEPEST = 2
"""Variables of one another, from what is converted to the layer's."""
_PROPERTY, _KEPT_PROPERTY = "property", "cached_property"
"""The latter, of functools, binds what a method returns to an attribute of its name."""


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
                name=_name_kept(place),
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
        is_property = at is not None and isinstance(at.statement, ast.Return)
        instead = f"a plain `{_PROPERTY}`" if is_property else "a variable of the call"
        yield Advice(
            "del_ref",
            f"Narrow weights save nothing while {format_bytes(match.nbytes)} of wider ones are "
            f"kept beside them: make `{match.name}` {instead}, so that only one "
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
    """The statement of a layer that keeps what one of its methods converts, if any."""
    frames = window.user_frames(window.stack(row))[:2]
    places = [place for place in map(place_of, frames) if place is not None]
    converted = calls_in(places[0].statement, *CONVERTING) if places else []
    if not any(_is_of_layer(places[0], call.func) for call in converted):
        return None
    is_handed_on = isinstance(places[0].statement, ast.Return) and not _name_kept(places[0])
    keeping = places[-1] if is_handed_on else places[0]
    if keeping.class_ is None or keeping.class_ is not places[0].class_ or not _is_layer(keeping):
        return None
    is_first = keeping.function is None or keeping.function.name == _FIRST
    return keeping if _name_kept(keeping) and not is_first else None


def _name_kept(place: Place) -> str:
    """The attribute of the layer, or the entry in one, that a statement binds; empty for none.

    Also a property that functools keeps: ``self.weight32``, by the statement that returns it.
    """
    if isinstance(place.statement, ast.Return) and place.function is not None:
        decorators = (ast.unparse(one) for one in place.function.decorator_list)
        is_kept = any(one.rpartition(".")[2] == _KEPT_PROPERTY for one in decorators)
        return f"self.{place.function.name}" if is_kept else ""
    targets = bound_names(place.statement)
    target = targets[0] if len(targets) == 1 else None
    whole = target.value if isinstance(target, ast.Subscript) else target
    is_own = isinstance(whole, ast.Attribute) and root_name(whole) == "self"
    return ast.unparse(target) if target is not None and is_own else ""


def _is_of_layer(place: Place, value: ast.expr, depth: int = 0) -> bool:
    """Whether what is converted comes of ``self``, also by variables of the function."""
    names = {node.id for node in ast.walk(value) if isinstance(node, ast.Name)}
    if "self" in names:
        return True
    bound = (one for name in names for one in values_of(place, name))
    return depth < _DEEPEST and any(
        one is not None and _is_of_layer(place, one, depth + 1) for one in bound
    )


def _is_layer(place: Place) -> bool:
    """Whether the class around has a `forward`, or one of the file that inherits from it."""
    classes = {one.name: one for one in place.program.classes()}
    waiting, visited = [place.class_], {place.class_}
    while waiting:
        class_ = waiting.pop()
        if class_ is None:
            continue
        if any(isinstance(one, ast.FunctionDef) and one.name == "forward" for one in class_.body):
            return True
        heirs = {
            one
            for one in classes.values()
            if any(isinstance(base, ast.Name) and base.id == class_.name for base in one.bases)
        }
        waiting += heirs - visited
        visited |= heirs
    return False


RULE = WidenedWeightsRule()
