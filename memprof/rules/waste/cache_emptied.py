"""cache-emptied: `empty_cache` gives back in every step what the next step asks for again."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.patch import diff, removed
from memprof.source_code.program import Place
from memprof.source_code.scopes import qualified_name
from memprof.trace import Action
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]

_FEWEST_STEPS = 4
"""Fewer tell no habit: an allocator that warms up gives a segment back now and then."""
_LEAST_STEPS = 0.5
"""Share of the steps that give segments back, and of those that ask for some: a call at the end
of an epoch, or before a validation, is in few of them."""
_TAKES = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
_GIVES = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)


class CacheEmptied(WasteRule[Match]):
    """Segments go back to the driver in most steps, with no request in sight that failed."""

    name = "cache-emptied"
    summary = "the allocator's cache is emptied in every step"
    fixes = ("drop_empty_cache",)

    def matches(self, window: Window) -> Iterator[Match]:
        """Segments that are freed and allocated in most steps of a real allocator."""
        action = window.trace.events.action
        if window.trace.modelled or not window.line.reserved.any():
            return  # a modelled allocator gives nothing back
        if len(window.steps) < _FEWEST_STEPS or (action == Action.OOM).any():
            return  # before it gives up, torch empties the cache by itself
        giving_rows = np.flatnonzero(np.isin(action, _GIVES))
        taking_rows = np.flatnonzero(np.isin(action, _TAKES))
        least = _LEAST_STEPS * len(window.steps)
        if (
            min(len(np.unique(window.step_of_event[rows])) for rows in (giving_rows, taking_rows))
            < least
        ):
            return
        yield Match(
            row=window.largest(window.at_peak),
            rows=np.zeros(0, dtype=np.int64),  # segments, and no tensors
            nbytes=int(window.trace.events.size[taking_rows].sum()) // len(window.steps),
        )

    def title(self, match: Match) -> str:  # noqa: ARG002 - every match reads the same
        """Say that they are wanted again."""
        return "go back to the driver and are asked for again in every step"

    def advice(self, match: Match, case: Case) -> Iterator[Advice]:
        """Leave the call out."""
        nbytes = format_bytes(match.nbytes)
        why = f"{nbytes} go back to the driver and are asked for again in every step"
        calls = [(c, p) for c, p in case.calls("empty_cache") if _is_of_torch(c, p)]
        if not calls:
            yield Advice("drop_empty_cache", f"{why}.", case.site)
            return
        call, place = calls[0]
        alone = isinstance(place.statement, ast.Expr) and place.statement.value is call
        # Of several calls it is not known which one is made in every step.
        sure = alone and len(calls) == 1
        patch = diff(place.program, removed(place.program, place.statement)) if sure else ""
        more = f"{why}: it costs time and frees nothing."
        yield Advice("drop_empty_cache", more, place, patch=patch)


def _is_of_torch(call: ast.Call, place: Place) -> bool:
    """Whether it is torch's function, and not some object's method of the same name."""
    name = qualified_name(place, call.func) or ast.unparse(call.func)
    return name.partition(".")[0] == "torch"


RULE = CacheEmptied()
