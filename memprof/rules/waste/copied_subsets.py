"""copied-subsets: the rows of each fold are copied out of a data set that stays as well."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.lifespan import stays_near_peak
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import Place, called_name, calls_in, place_of
from memprof.units import format_bytes
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak, in the copies of one statement."""
_FEWEST = 2
"""Times that a statement has copied rows which are there together."""
_DATA_SET, _SPLIT = "TensorDataset", "split"


@dataclass(frozen=True, slots=True, eq=False)
class CopiedSubsets(Match):
    """What the rows are copied from, and by what index."""

    source: str = ""
    whole: str = ""
    """A data set of all rows, as a person would type it."""
    index: str = ""
    times: int = 0


class CopiedSubsetsRule(WasteRule[CopiedSubsets]):
    """`folds.append(TensorDataset(x[train], y[train]))`, for each of five folds."""

    name = "copied-subsets"
    summary = "the rows of several subsets are copied, and their data set stays too"
    fixes = ("subset",)

    def matches(self, window: Window) -> Iterator[CopiedSubsets]:
        """Copies by indices that one statement makes again and again, beside what they are of."""
        mask = stays_near_peak(window) & (window.lives.alloc >= 0)
        for site in window.large_sites(mask, _LEAST_SHARE):
            place = place_of(window.owners.sites.frames[site])
            indexed = _indexed(place) if place is not None else []
            if place is None or not indexed:
                continue
            rows = _made_at(window, place, mask)
            times = _times(window, rows)
            if times < _FEWEST or not _is_source_there(window, rows):
                continue
            yield CopiedSubsets(
                row=int(rows[window.lives.size[rows].argmax()]),
                rows=rows,
                nbytes=int(window.lives.size[rows].sum()),
                saving=window.replayed(window.whole(rows)),
                source=ast.unparse(indexed[0].value),
                whole=_whole(place, indexed),
                index=ast.unparse(indexed[0].slice),
                times=times,
            )
            return

    def title(self, match: CopiedSubsets) -> str:
        """Say of what they are copies."""
        return f"are {match.times} copies of rows of `{match.source}`, which stays as well"

    def advice(self, match: CopiedSubsets, case: Case) -> Iterator[Advice]:
        """Keep the indices."""
        yield Advice(
            "subset",
            f"Indexing copies: {format_bytes(match.nbytes)} are the same rows again. Keep one "
            f"`{match.whole}`, and of each part its indices.",
            case.site,
            typed=f"torch.utils.data.Subset({match.whole}, {match.index})",
        )


def _indexed(place: Place) -> list[ast.Subscript]:
    """What a statement takes by an index that has a name: for data sets, or folds of a split.

    ``TensorDataset(x[train], y[train])``.
    """
    loop = place.loop
    is_split = isinstance(loop, (ast.For, ast.AsyncFor)) and called_name(loop.iter) == _SPLIT
    within = [place.statement] if is_split else calls_in(place.statement, _DATA_SET)
    return [
        node
        for one in within
        for node in ast.walk(one)
        if isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Load)
        and isinstance(node.value, (ast.Attribute, ast.Name))
        and isinstance(node.slice, ast.Name)
    ]


def _whole(place: Place, indexed: list[ast.Subscript]) -> str:
    """The data set that has the rows of all parts: ``TensorDataset(x, y)``."""
    taken = set(map(id, indexed))
    for call in calls_in(place.statement, _DATA_SET):
        parts = [one for one in call.args if id(one) in taken and isinstance(one, ast.Subscript)]
        if parts and len(parts) == len(call.args):
            return f"{_DATA_SET}({', '.join(ast.unparse(one.value) for one in parts)})"
    return f"{_DATA_SET}({ast.unparse(indexed[0].value)})"


def _made_at(window: Window, place: Place, mask: Bools) -> Ints:
    """What the lines of a statement made that stays."""
    frames = window.owners.sites.frames
    own = [f.filename == place.program.filename and f.line in place.lines for f in frames]
    return np.flatnonzero(mask & np.array(own, dtype=bool)[window.site])


def _times(window: Window, rows: Ints) -> int:
    """How often the line that made most of it has made some."""
    if not len(rows):
        return 0
    sites, sizes = window.site[rows], window.lives.size[rows]
    of_site = np.bincount(sites, weights=sizes)
    largest = rows[sites == of_site.argmax()]
    least = window.lives.size[largest].max() // 2  # labels beside the rows are small
    return int((window.lives.size[largest] > least).sum())


def _is_source_there(window: Window, rows: Ints) -> bool:
    """Whether something as large as the largest copy was there before, and is at the peak."""
    lives = window.lives
    first = int(lives.alloc[rows].min())
    others = window.at_peak & ~window.has_owner & (lives.alloc < first)
    return bool((lives.size[others] >= lives.size[rows].max()).any())


RULE = CopiedSubsetsRule()
