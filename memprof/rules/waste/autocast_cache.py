"""autocast-cache: an autocast region that stays open keeps low-precision copies of weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.autocast_regions import uncached
from memprof.rules.case import Case
from memprof.rules.lifespan import outlive_steps
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.trace import Category, Phase
from memprof.units import format_bytes
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_LEAST_COPIES = 2
"""A single tensor of half a weight's bytes is that by chance."""


@dataclass(frozen=True, slots=True, eq=False)
class CachedCasts(Match):
    """Copies of weights."""

    copies: int = 0
    """How many weights have one."""


class AutocastCache(WasteRule[CachedCasts]):
    """autocast drops its copies of weights when its outermost region ends."""

    name = "autocast-cache"
    summary = "autocast keeps low-precision copies of the weights over the steps"
    fixes = ("disable_autocast_cache",)

    def matches(self, window: Window) -> Iterator[CachedCasts]:
        """Tensors of half a parameter's bytes, made in its module's forward pass, that stay."""
        weights = Counter(_keys(window, np.flatnonzero(window.category == Category.PARAMETER), 1))
        staying = ~window.has_owner & window.at_peak & outlive_steps(window)
        candidates = np.flatnonzero(staying & (window.phase == Phase.FORWARD))
        keys = _keys(window, candidates, 2)
        # The cache has one copy of a weight; more of that size are activations that look like it.
        count = Counter(keys)
        one_each = np.array([0 < count[key] <= weights[key] for key in keys], dtype=bool)
        rows = candidates[one_each]
        if len(rows) < _LEAST_COPIES:
            return
        yield CachedCasts(
            row=int(rows[np.argmax(window.lives.size[rows])]),
            rows=rows,
            nbytes=int(window.lives.size[rows].sum()),
            saving=window.replayed(window.whole(rows)),
            copies=len(rows),
        )

    def title(self, match: CachedCasts) -> str:  # noqa: ARG002 - every match reads the same
        """Say who keeps them."""
        return "are low-precision copies of weights that autocast keeps"

    def advice(self, match: CachedCasts, case: Case) -> Iterator[Advice]:
        """Turn the cache off where the program enters autocast."""
        why = (
            "Autocast keeps a low-precision copy of every weight it cast "
            f"({format_bytes(match.nbytes)}) until its outermost region ends"
        )
        yield from uncached(case, why)


def _keys(window: Window, rows: Ints, times: int) -> list[tuple[int, int]]:
    """Module, and so many times the bytes, of each row."""
    requested = times * window.lives.requested[rows]
    return list(zip(window.module[rows].tolist(), requested.tolist(), strict=True))


RULE = AutocastCache()
