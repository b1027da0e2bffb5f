"""Rules for the caching allocator: private pools."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import numpy as np

from memprof.rules.case import Case, Proposal
from memprof.trace import EMPTY

__all__ = ["rules"]


def rules(case: Case) -> Iterator[Proposal]:
    """``share_pool``."""
    if case.grows:
        yield from _private_pools(case)


def _private_pools(case: Case) -> Iterator[Proposal]:
    """Growth in memory pools of their own, as every captured CUDA graph has one."""
    allocs = case.found.evidence.allocs
    if case.trace is None or not len(allocs):
        return
    pools = np.unique(case.trace.events.pool[allocs])
    if int((pools > EMPTY).sum()) < 2:
        return
    for call, place in case.calls("graph", "capture_begin", "make_graphed_callables"):
        if "cuda" in ast.unparse(call.func):
            yield Proposal(
                "share_pool",
                0.92,
                f"{len(pools)} graphs were captured, each with a memory pool of its own: pass one "
                "`pool=torch.cuda.graph_pool_handle()` to all.",
                place,
            )
            return
    yield Proposal("share_pool", 0.7, f"It grows over {len(pools)} private pools.", case.site)
