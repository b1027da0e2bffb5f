"""autocast-leaves: an autocast region that stays open keeps every leaf that it casts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memprof.reference_chain import Link
from memprof.rules.autocast_regions import uncached
from memprof.rules.case import Case
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.units import format_bytes

__all__ = ["RULE"]

_CAST = "ToCopyBackward0"
"""Autograd's node of a conversion, which refers to the leaf that was converted."""


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
    )

    def match(self, case: Case) -> CachedLeaves | None:
        """Memory without an owner in Python that hangs on a conversion, while autocast caches."""
        links = [link for holder in case.finding.holders for link in holder.links]
        is_cached = any(link.unowned is not None and link.unowned.autocast for link in links)
        return CachedLeaves() if is_cached and any(map(_is_cast, links)) else None

    def advice(self, cause: CachedLeaves, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - its presence says all
        """Leave the region between the steps, or turn its cache off."""
        grown = format_bytes(round(case.finding.bytes_per_step))
        yield uncached(
            case,
            "Autocast keeps a low-precision copy of each leaf tensor that requires gradients, with "
            f"the leaf ({grown} per step), until its outermost region ends",
        )


def _is_cast(link: Link) -> bool:
    of_memory = link.unowned is not None and link.unowned.owner == _CAST
    return of_memory or any(name == _CAST for name, _ in link.nodes)


RULE = AutocastLeaves()
