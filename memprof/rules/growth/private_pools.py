"""private-pools: captured CUDA graphs have a memory pool each."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.program import Place
from memprof.trace import EMPTY

__all__ = ["RULE"]

_LEAST_POOLS = 2
"""One is what a single graph, or graphs that share it, have."""


@dataclass(frozen=True, slots=True, eq=False)
class Pools(Cause):
    """Pools that the growing tensors lie in."""

    number: int
    capture: Place | None
    """A statement that captures; None where the program's files show none."""


class PrivatePools(GrowthRule[Pools]):
    """A CUDA graph for each input shape, captured without `pool=`."""

    name = "private-pools"
    summary = "every captured CUDA graph has a memory pool of its own"
    fixes = ("share_pool",)
    precedes = ("kept-graph",)

    def match(self, case: Case) -> Pools | None:
        """Growing tensors that lie in several pools other than the allocator's own."""
        allocs = case.finding.evidence.allocs
        if case.trace is None or not len(allocs):
            return None
        pools = np.unique(case.trace.events.pool[allocs])
        number = int((pools > EMPTY).sum())
        return Pools(number, _capture(case)) if number >= _LEAST_POOLS else None

    def advice(self, cause: Pools, case: Case) -> Iterator[Advice]:
        """Let them share one."""
        if cause.capture is None:
            why = f"It grows over {cause.number} private pools."
            yield Advice("share_pool", why, case.site, otherwise=True)
            return
        yield Advice(
            "share_pool",
            f"{cause.number} graphs were captured, each with a memory pool of its own: pass one "
            "`pool=torch.cuda.graph_pool_handle()` to all.",
            cause.capture,
        )


def _capture(case: Case) -> Place | None:
    calls = case.calls("graph", "capture_begin", "make_graphed_callables")
    return next((place for call, place in calls if "cuda" in ast.unparse(call.func)), None)


RULE = PrivatePools()
