"""autocast-leaves: an autocast region that stays open keeps every leaf that it casts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.reference_chain import Link
from memprof.rules.autocast_regions import regions_around, uncached
from memprof.rules.case import Case
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.units import format_bytes

__all__ = ["RULE"]

_CAST = "ToCopyBackward0"
"""Autograd's node of a conversion, which refers to the leaf that was converted."""
_MOSTLY = 0.8
"""Of the tensors, that come in pairs of a leaf and its copy."""
_MOST_ALIKE = 2
"""Tensors of a leaf's size for each copy: its gradient is one."""


@dataclass(frozen=True, slots=True, eq=False)
class CachedLeaves(Cause):
    """Copies that only autocast's cache holds."""


class AutocastLeaves(GrowthRule[CachedLeaves]):
    """`with torch.autocast(...):` around a loop whose inputs require gradients.

    The cache takes a copy of each leaf in float32 that requires gradients, of inputs as of
    weights: `cached_cast` in torch's ``aten/src/ATen/autocast_mode.cpp``.
    """

    name = "autocast-leaves"
    summary = "autocast keeps a copy of every input that requires gradients"
    fixes = ("disable_autocast_cache",)
    precedes = (
        "kept-graph",
        "carried-state",
        "running-sum",
        "assigned-history",
        "no-backward",
        "create-graph",
        "kept-attribute",
    )

    def match(self, case: Case) -> CachedLeaves | None:
        """Memory without an owner in Python that hangs on a conversion, while autocast caches."""
        links = [link for holder in case.finding.holders for link in holder.links]
        is_cached = any(link.unowned is not None and link.unowned.autocast for link in links)
        # Where no search found who holds them, the source says whether they were made in a region.
        is_cached |= not links and bool(regions_around(case))
        is_cast = any(map(_is_cast, links)) or _has_copies(case)
        return CachedLeaves() if is_cached and is_cast else None

    def advice(self, cause: CachedLeaves, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - its presence says all
        """Leave the region between the steps, or turn its cache off."""
        grown = format_bytes(round(case.finding.bytes_per_step))
        yield from uncached(
            case,
            "Autocast keeps a low-precision copy of each leaf tensor that requires gradients, with "
            f"the leaf ({grown} per step), until its outermost region ends",
        )


def _is_cast(link: Link) -> bool:
    of_memory = link.unowned is not None and link.unowned.owner == _CAST
    return of_memory or any(name == _CAST for name, _ in link.nodes)


def _has_copies(case: Case) -> bool:
    """Whether most of what grows are tensors with one of half the bytes beside each.

    A leaf's gradient is as large as the leaf.
    """
    window, allocs = case.window, case.finding.evidence.allocs
    if window is None or not len(allocs):
        return False
    lives = window.lives
    rows = np.flatnonzero(np.isin(lives.alloc, allocs))
    count = Counter(lives.requested[rows].tolist())
    halves = {size // 2: size for size in count if size % 2 == 0 and size // 2 in count}
    paired = sum(
        copies + min(_MOST_ALIKE * copies, count[size])
        for half, size in halves.items()
        if (copies := count[half])
    )
    return paired >= _MOSTLY * len(rows)


RULE = AutocastLeaves()
