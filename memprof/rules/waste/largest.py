"""largest: one tensor makes much of the peak, and nothing more is known of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from memprof.rules.case import Case
from memprof.rules.large_tensor import (
    LargeTensor,
    large_tensor,
    made_by_module,
    made_on_its_line,
)
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.trace import Category
from memprof.units import format_bytes
from memprof.views.owners import CATEGORY_NAMES
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE"]


class Largest(WasteRule[Match]):
    """Pairwise distances, attention scores, logits over a vocabulary: large, and perhaps meant."""

    name = "largest"
    summary = "one tensor makes much of the peak"
    fixes = ("chunk", "mixed_precision", "checkpoint")
    yields_to = ("grown-by-copy", "broadcast", "repeated", "upcast")

    def matches(self, window: Window) -> Iterator[Match]:
        """The largest tensor that is no part of a model, with what is of its size."""
        large = large_tensor(window)
        if large is None:
            return
        row, rows = _chain(window, large)
        yield Match(
            row=row,
            rows=large.there,
            nbytes=large.nbytes,
            saving=window.replayed(window.whole(rows)),
            tentative=True,  # it may well be what the program is for
        )

    def title(self, match: Match) -> str:
        """Say how many they are."""
        number = len(match.rows)
        return f"are {number} tensors of one size" if number > 1 else "are one tensor"

    def advice(self, match: Match, case: Case) -> Iterator[Advice]:
        """Make it smaller, or not keep it."""
        number, nbytes = len(match.rows), format_bytes(match.nbytes)
        takes = f"{number} tensors of one size take" if number > 1 else "One tensor takes"
        it, its = ("they", "their") if number > 1 else ("it", "its")
        why = f"{takes} {nbytes} at once; in parts {it} need not."
        yield Advice("chunk", why, case.site)
        if case.found.category == CATEGORY_NAMES[Category.ACTIVATION]:
            again = f"{its.title()} {nbytes} can be recomputed in the backward pass."
            yield Advice("checkpoint", again, case.site)
        half = f"In bfloat16 {its} {nbytes} are half."
        yield Advice("mixed_precision", half, case.site, remains=0.5)


def _chain(window: Window, large: LargeTensor) -> tuple[int, Ints]:
    """What its stack makes; if the peak does not depend on that, the like of one function.

    A chain of operations, or a pass through several modules, has several of them at any moment.
    """
    row, alike = large.row, large.alike
    rows = made_on_its_line(window, row)
    if 2 * window.replayed(window.whole(rows)).bytes >= large.nbytes:
        return row, rows
    frames = window.owners.sites.frames
    numbers: dict[tuple[str, str], int] = {}
    of_site = [numbers.setdefault((f.filename, f.name), len(numbers)) for f in frames]
    function = np.array(of_site, dtype=np.int64)[window.site]
    passing = alike & ~(_by_modules(window) & (window.category == Category.ACTIVATION))
    there = passing & window.at_peak
    if not there.any():
        return row, rows
    main = int(np.bincount(function[there], weights=window.lives.size[there]).argmax())
    chain = np.flatnonzero(passing & (function == main) & (window.made_in >= 0))
    of_step = chain[window.made_in[chain] == window.made_in[row]]
    return int(of_step[0]) if len(of_step) else row, chain


def _by_modules(window: Window) -> Bools:
    """Per lifetime: whether a module that the user's line calls made it."""
    made = np.zeros(len(window.trace.tables.stacks), dtype=bool)
    for stack in np.unique(window.lives.stack).tolist():
        made[stack] = made_by_module(window, int(np.argmax(window.lives.stack == stack)))
    by_modules: Bools = made[window.lives.stack]
    return by_modules


RULE = Largest()
