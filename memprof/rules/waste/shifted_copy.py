"""shifted-copy: all of a data set is kept once more, some rows further on."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.lifespan import stays_near_peak
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import Place, assigned, called_name, place_of
from memprof.source_code.verbs import JOINING
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.15
"""Of the peak."""
_ABOUT = 0.02
"""By which both may differ: the last row may be left out."""
_ROLL = "roll"
_COPIES = frozenset(("clone", "contiguous"))


@dataclass(frozen=True, slots=True, eq=False)
class ShiftedCopy(Match):
    """What is there once more, and under which name."""

    source: str = ""
    name: str = ""


class ShiftedCopyRule(WasteRule[ShiftedCopy]):
    """`self.next_obs = torch.cat([obs[1:], obs[-1:]])` beside `self.obs = obs`."""

    name = "shifted-copy"
    summary = "a data set is kept once more, some rows further on"
    fixes = ("store_once",)

    def matches(self, window: Window) -> Iterator[ShiftedCopy]:
        """What stays and is joined of slices of one name, beside something as large that stays."""
        mask = stays_near_peak(window) & window.at_peak & ~window.has_owner
        lives = window.lives
        for site in window.large_sites(mask, _LEAST_SHARE):
            place = place_of(window.owners.sites.frames[site])
            shifted = _shifted(place) if place is not None else None
            if shifted is None:
                continue
            rows = np.flatnonzero(mask & (window.site == site))
            size = int(lives.requested[rows].max())
            others = lives.requested[mask & (window.site != site)]
            if not (np.abs(others - size) <= _ABOUT * size).any():
                continue  # what it was made of is gone
            every = np.flatnonzero((window.site == site) & ~window.has_owner)
            yield ShiftedCopy(
                row=int(rows[lives.size[rows].argmax()]),
                rows=rows,
                nbytes=int(lives.size[rows].sum()),
                saving=window.replayed(window.whole(every)),
                source=shifted[0],
                name=shifted[1],
            )
            return

    def title(self, match: ShiftedCopy) -> str:
        """Say of what they are a copy."""
        return f"are `{match.source}` once more, some rows further on"

    def advice(self, match: ShiftedCopy, case: Case) -> Iterator[Advice]:
        """Read the rows by their own places."""
        why = (
            f"`{match.name}`, {format_bytes(match.nbytes)}, has the rows of `{match.source}` at "
            "other places: keep them once, and read the row that is meant by its own index."
        )
        yield Advice("store_once", why, case.site, typed=f"{match.source}[index + 1]")


def _shifted(place: Place) -> tuple[str, str] | None:
    """What a statement copies shifted, and to which name; None for other statements."""
    for target, value in assigned(place.statement):
        source = _source_of(value)
        if source and source != ast.unparse(target):
            return source, ast.unparse(target)
    return None


def _source_of(value: ast.expr | None) -> str:
    """The one name whose slices an expression joins, rolls or copies; else empty."""
    if not isinstance(value, ast.Call):
        return ""
    name = called_name(value)
    receiver = value.func.value if isinstance(value.func, ast.Attribute) else None
    if name == _ROLL:
        is_method = isinstance(receiver, ast.Attribute) or (
            isinstance(receiver, ast.Name) and receiver.id != "torch"
        )
        source = receiver if is_method else value.args[0] if value.args else None
        return ast.unparse(source) if source is not None else ""
    if name in JOINING and value.args and isinstance(value.args[0], (ast.List, ast.Tuple)):
        sources = {_sliced(one) for one in value.args[0].elts}
        return sources.pop() if len(sources) == 1 else ""
    return _sliced(receiver) if name in _COPIES and receiver is not None else ""


def _sliced(value: ast.expr) -> str:
    """``obs`` of ``obs[1:]``; empty for what takes no rows of one stretch."""
    if not isinstance(value, ast.Subscript) or not isinstance(value.slice, ast.Slice):
        return ""
    is_name = isinstance(value.value, (ast.Name, ast.Attribute))
    return ast.unparse(value.value) if is_name and value.slice.step is None else ""


RULE = ShiftedCopyRule()
