"""When two findings are about the same memory, so that only one of them needs to be reported."""

from __future__ import annotations

import enum

from memprof.rules.finding import RuleFinding
from memprof.rules.same_holder import holder_key

__all__ = ["ANY_GROWTH", "ANY_WASTE", "Overlap"]

ANY_GROWTH = "growth/*"
"""Stands for every finding of tensors that grow, in what a rule yields to."""
ANY_WASTE = "waste/*"
"""Stands for every rule in ``memprof/rules/waste``."""

_HOST = frozenset(("cpu", "host"))
"""The CPU's tensors, and the memory of the process that they are part of."""


class Overlap(enum.Enum):
    """What two findings have in common where they are about the same memory."""

    LINE = "line"
    """The source line of both is the same."""
    DEVICE = "device"
    """Both are of one device as a whole; tensors of the CPU are part of the host's memory."""
    HOLDER = "holder"
    """The same thing holds what both are about."""

    def joins(self, one: RuleFinding, other: RuleFinding) -> bool:
        """Whether two findings have this in common."""
        if self is Overlap.LINE:
            sites = one.site, other.site
            return sites[0].filename == sites[1].filename and sites[0].line == sites[1].line
        if self is Overlap.DEVICE:
            return one.device == other.device or {one.device, other.device} <= _HOST
        keys = [holder_key(finding.holders[0]) for finding in (one, other) if finding.holders]
        return len(keys) > 1 and keys[0] == keys[1]
