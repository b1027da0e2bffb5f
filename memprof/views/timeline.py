"""Allocated and reserved bytes over a trace, its peak, and the same split into groups.

Everything is counted from the state in which the trace began, never from zero. Who owns the bytes
is `owners`' question; drawing is the dashboards'.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memprof.trace import NOT_RECORDED, Action, State, Trace
from memprof.views.lifetimes import Lifetimes, lifetimes

__all__ = ["Peak", "Timeline", "grouped", "samples", "timeline"]

Bytes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Peak:
    """The highest value and the first event after which it stood; -1 is the trace's start."""

    bytes: int
    event: int


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """Bytes after every event: entry 0 is the trace's start, entry ``i + 1`` follows event i."""

    time_us: Bytes
    """`NOT_RECORDED` throughout where the recorder kept no clock."""
    allocated: Bytes
    reserved: Bytes
    lives: Lifetimes

    @property
    def peak_allocated(self) -> Peak:
        """The most bytes in use by tensors at once."""
        return _peak(self.allocated)

    @property
    def peak_reserved(self) -> Peak:
        """The most bytes held from the driver at once."""
        return _peak(self.reserved)


def timeline(trace: Trace) -> Timeline:
    """Allocated and reserved bytes of ``trace`` after each event, counted from its own start."""
    lives = lifetimes(trace)
    events = len(trace.events)
    change = np.zeros(events + 1, dtype=np.int64)
    in_window = lives.alloc >= 0
    np.add.at(change, lives.alloc[in_window] + 1, lives.size[in_window])
    dropped = lives.free < events
    np.add.at(change, lives.free[dropped] + 1, -lives.size[dropped])
    allocated = _anchor(change, _start_allocated(trace, lives), _listed_bytes(trace.end))
    reserved = _anchor(
        _reserved_change(trace), _total(trace.start, "reserved"), _total(trace.end, "reserved")
    )
    return Timeline(_times(trace), allocated, reserved, lives)


def _start_allocated(trace: Trace, lives: Lifetimes) -> int | None:
    if trace.start is not None:
        return _listed_bytes(trace.start)
    return int(lives.size[lives.alloc == NOT_RECORDED].sum())


def _listed_bytes(state: State | None) -> int | None:
    return None if state is None else state.allocated - state.unlisted


def _total(state: State | None, name: str) -> int | None:
    return None if state is None else int(getattr(state, name))


def _anchor(change: Bytes, start: int | None, end: int | None) -> Bytes:
    """The running sum, fixed at the end where that was recorded (it is authoritative).

    Never below zero: a file whose segments contradict its events is read as far as it goes.
    """
    running = np.cumsum(change)
    base = end - int(running[-1]) if end is not None else (start or 0)
    return running + max(base, -int(running.min()))


def _reserved_change(trace: Trace) -> Bytes:
    action = trace.events.action
    grows = (action == Action.SEGMENT_ALLOC) | (action == Action.SEGMENT_MAP)
    shrinks = (action == Action.SEGMENT_FREE) | (action == Action.SEGMENT_UNMAP)
    change = np.zeros(len(action) + 1, dtype=np.int64)
    change[1:][grows] = trace.events.size[grows]
    change[1:][shrinks] = -trace.events.size[shrinks]
    return change


def _times(trace: Trace) -> Bytes:
    times = trace.events.time_us
    first = times[:1] if len(times) else np.full(1, NOT_RECORDED)
    return np.concatenate([first, times]).astype(np.int64)


def _peak(values: Bytes) -> Peak:
    highest = int(values.argmax())
    return Peak(int(values[highest]), highest - 1)


def samples(line: Timeline, count: int) -> Bytes:
    """At most about ``2 * count`` entries of the timeline that keep its shape.

    The lowest and the highest allocated entry of each of ``count`` equal runs of entries are kept
    (so no peak is lost), as are the first, the last and the reserved peak.
    """
    length = len(line.allocated)
    if length <= 2 * count:
        return np.arange(length)
    edges = np.linspace(0, length, count + 1).astype(np.int64)[:-1]
    places = [np.array([0, length - 1, int(line.reserved.argmax())])]
    places += [_extreme(line.allocated, edges, reduce) for reduce in (np.minimum, np.maximum)]
    return np.unique(np.concatenate(places))


def _extreme(values: Bytes, edges: Bytes, reduce: np.ufunc) -> Bytes:
    """The first entry of each run that holds the run's extreme value."""
    best = reduce.reduceat(values, edges)
    sizes = np.diff(np.append(edges, len(values)))
    hits = np.flatnonzero(values == np.repeat(best, sizes))
    run = np.searchsorted(edges, hits, side="right") - 1
    return hits[np.unique(run, return_index=True)[1]]


def grouped(line: Timeline, group: Bytes, groups: int, at: Bytes) -> npt.NDArray[np.int64]:
    """Bytes of each group at entries ``at`` of the timeline.

    Args:
        line: the timeline.
        group: the group (0 … ``groups - 1``) of every lifetime.
        groups: how many groups there are.
        at: entries of the timeline, ascending.

    Returns:
        An array of shape (groups, len(at)).
    """
    lives, events = line.lives, len(line.allocated) - 1
    grid = np.zeros((groups, len(at) + 1), dtype=np.int64)
    for moments, sign in ((lives.alloc + 1, 1), (lives.free + 1, -1)):
        # An event at entry e changes all samples from the first one at or after e.
        inside = moments <= events
        slot = np.searchsorted(at, moments[inside])
        np.add.at(grid, (group[inside], slot), sign * lives.size[inside])
    return np.cumsum(grid, axis=1)[:, :-1]
