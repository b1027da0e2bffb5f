"""What a final state's tensors would take if laid out anew: which reserved bytes are only scatter.

For states without events, where no failed request can be replayed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from memprof.allocator import Workload, play, workload_of
from memprof.trace import EMPTY, NOT_RECORDED, BlockState, State, Trace
from memprof.what_if.candidate_settings import brings

__all__ = ["Layout", "idle_bytes", "layouts"]

_WORTH = 0.02
"""Share of the reserved bytes that must be saved to be told."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Another way to hold the same tensors."""

    change: str
    reserved: int
    """Bytes that torch would hold."""
    saved: int
    """Bytes less than it does."""


def layouts(trace: Trace) -> tuple[Layout, ...]:
    """The cache given back; the tensors laid out afresh, in whole and in expandable segments.

    Only what saves more than it would cost to read about.
    """
    state = trace.end
    if state is None or not state.reserved or state.unlisted:
        return ()
    workload = workload_of(trace)
    by_setting = {
        "torch.cuda.empty_cache()": state.reserved - idle_bytes(state),
        "the same tensors laid out afresh": _afresh(workload),
    }
    expandable = replace(workload.settings, expandable_segments=True)
    if brings(expandable, [trace]):
        name = "the same, with expandable_segments:True"
        by_setting[name] = _afresh(replace(workload, settings=expandable))
    results = [Layout(name, size, state.reserved - size) for name, size in by_setting.items()]
    return tuple(layout for layout in results if layout.saved > _WORTH * state.reserved)


def idle_bytes(state: State) -> int:
    """Bytes of whole segments that ``empty_cache`` gives back, and torch before it fails.

    Those of private pools are not among them; of expandable segments the free pages would be too.
    """
    lives = state.blocks.state != BlockState.INACTIVE
    segments = np.ones(len(state.segments), dtype=bool)
    used = np.unique(state.blocks.segment[lives])
    segments[used[used >= 0]] = False
    segments &= (state.segments.pool == EMPTY) | (state.segments.pool == NOT_RECORDED)
    return int(state.segments.size[segments].sum())


def _afresh(workload: Workload) -> int:
    return play(workload, capacity=1 << 62, afresh=True).peak_reserved
