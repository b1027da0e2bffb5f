"""The allocator's memory rather than tensors': fragmentation, a cache emptied for nothing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from memprof.analysis.suspicion import Pattern, Suspicion
from memprof.trace import Action
from memprof.units import format_bytes
from memprof.views.peak_without import Saving
from memprof.views.window import Window

__all__ = ["churn"]

_LEAST_IDLE = 0.2
"""Share of the reserved bytes that no tensor uses at the reserved peak."""
_LEAST_IDLE_BYTES = 256 << 20
_LEAST_IN_VAIN = 0.1
"""Of the idle bytes."""
_MOST_STEPS = 0.5


def churn(window: Window) -> Iterator[Suspicion]:
    """What a real caching allocator did; a modelled one has nothing to say."""
    if window.trace.modelled or not window.line.reserved.any():
        return
    yield from _cache_emptied(window)
    yield from _fragmentation(window)


def _cache_emptied(window: Window) -> Iterator[Suspicion]:
    """Segments go back in most steps and are asked for again in the next, with no need in sight."""
    action = window.trace.events.action
    if len(window.steps) < 4 or (action == Action.OOM).any():
        return
    freed = np.flatnonzero((action == Action.SEGMENT_FREE) | (action == Action.SEGMENT_UNMAP))
    made = np.flatnonzero((action == Action.SEGMENT_ALLOC) | (action == Action.SEGMENT_MAP))
    steps_freed = set(window.step_of_event[freed].tolist())
    steps_made = set(window.step_of_event[made].tolist())
    often = _MOST_STEPS * len(window.steps)
    if len(steps_freed) < often or len(steps_made) < often:
        return
    asked = int(window.trace.events.size[made].sum()) // len(window.steps)
    mask = window.at_peak
    yield Suspicion(
        Pattern.CACHE_EMPTIED,
        window.largest(mask),
        np.zeros(0, dtype=np.int64),
        0.8,
        "go back to the driver and are asked for again in every step",
        asked,
        None,
        {"steps": len(steps_freed)},
    )


def _fragmentation(window: Window) -> Iterator[Suspicion]:
    line = window.line
    entry = int(line.reserved.argmax())
    idle = int(line.reserved[entry] - line.allocated[entry])
    if idle < max(_LEAST_IDLE * int(line.reserved[entry]), _LEAST_IDLE_BYTES):
        return
    # What a step frees and takes again is cache, not fragmentation: count from the peak in use.
    idle = int(line.reserved[entry]) - int(line.allocated.max())
    if idle < _LEAST_IDLE * int(line.reserved[entry]):
        return
    if _taken_in_vain(window) < _LEAST_IN_VAIN * idle:
        return  # the cache of an earlier time, not holes
    mask = window.at_peak & ~window.owned
    row = window.main_site(mask) if mask.any() else window.largest(window.at_peak)
    sizes = _sizes_of(window, row)
    yield Suspicion(
        Pattern.FRAGMENTATION,
        row,
        np.flatnonzero(window.at_peak),
        0.8,
        f"of {format_bytes(int(line.reserved[entry]))} reserved lie between blocks in use",
        idle,
        Saving(int(line.reserved.max()), int(line.allocated.max())),
        {"sizes_at_site": sizes, "reserved": int(line.reserved[entry])},
    )


def _taken_in_vain(window: Window) -> int:
    """Bytes taken from the driver while as much was reserved and not in use."""
    line, events = window.line, window.trace.events
    grows = (events.action == Action.SEGMENT_ALLOC) | (events.action == Action.SEGMENT_MAP)
    rows = np.flatnonzero(grows)
    idle = line.reserved[rows] - line.allocated[rows]  # entry i is what stood before event i
    size = events.size[rows]
    return int(size[idle >= size].sum())


def _sizes_of(window: Window, row: int) -> int:
    """How many different sizes the same line asked for."""
    alike = window.site == window.site[row]
    return len(np.unique(window.lives.requested[alike]))
