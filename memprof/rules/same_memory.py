"""When two findings are about the same memory, so that only one of them needs to be reported."""

from __future__ import annotations

import enum

import numpy as np

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
    TENSORS = "tensors"
    """The same, or most tensors of the first are the other's as well."""
    DEVICE = "device"
    """Both are of one device as a whole; tensors of the CPU are part of the host's memory."""
    HOLDER = "holder"
    """The same thing holds what both are about."""

    def joins(self, one: RuleFinding, other: RuleFinding) -> bool:
        """Whether two findings have this in common."""
        if self in (Overlap.LINE, Overlap.TENSORS):
            sites = one.site, other.site
            is_line = sites[0].filename == sites[1].filename and sites[0].line == sites[1].line
            return is_line or (self is Overlap.TENSORS and _share_most(one, other))
        if self is Overlap.DEVICE:
            return one.device == other.device or {one.device, other.device} <= _HOST
        keys = [holder_key(finding.holders[0]) for finding in (one, other) if finding.holders]
        return len(keys) > 1 and keys[0] == keys[1]


def _share_most(one: RuleFinding, other: RuleFinding) -> bool:
    """Whether more than half of the tensors of the first finding are the other's in its window.

    And as many bytes: what was there before the window is no tensor of that, and may be much.
    """
    if (one.device, one.evidence.window) != (other.device, other.evidence.window):
        return False
    if 2 * other.bytes < one.bytes:
        return False
    own = one.evidence.allocs
    return 2 * int(np.isin(own, other.evidence.allocs).sum()) > len(own)
