"""Bytes that a remedy saves: from a replay of the recorded lifetimes without the tensors."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from memprof.rules.finding import Found, Kind
from memprof.run import Run
from memprof.trace import Trace
from memprof.views.peak_without import Cuts, Saving, replayed
from memprof.views.steps import step_of_event
from memprof.views.timeline import Timeline, timeline

__all__ = ["saving_of", "timeline_of"]


def saving_of(found: Found, run: Run) -> tuple[int, Saving | None]:
    """Bytes saved (a step for growth, else off the peak), and the peaks where a replay tells.

    Growth is replayed with every tensor freed at the end of the step that made it.
    """
    if found.match is not None and found.match.saving is not None:
        saving = found.match.saving.overall
        return saving.bytes, saving
    if found.kind in (Kind.WASTE, Kind.FRAGMENTATION):
        return found.bytes, None
    return round(found.bytes_per_step), _without_survivors(found, run)


def _without_survivors(found: Found, run: Run) -> Saving | None:
    device = run.device(found.device)
    window = found.evidence.window
    if device is None or not 0 <= window < len(device.windows) or not len(found.evidence.allocs):
        return None
    trace = device.windows[window]
    line = timeline_of(trace)
    rows = np.flatnonzero(np.isin(line.lives.alloc, found.evidence.allocs))
    steps = step_of_event(trace)
    made = steps[line.lives.alloc[rows]]
    ends = np.searchsorted(steps, made + 1) - 1
    return replayed(line, Cuts.ended(line, rows, ends))


@lru_cache(maxsize=4)
def timeline_of(trace: Trace) -> Timeline:
    """The timeline of a window, which several rules ask for."""
    return timeline(trace)
