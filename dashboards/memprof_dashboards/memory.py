"""The figure "memory over time": sampled bytes by owner, steps, phases and the peak; no drawing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from memprof.report.recording_gaps import is_bare_state
from memprof.trace import NOT_RECORDED, Action, Category, Phase
from memprof.views.owners import Grouping, OwnerGroupings
from memprof.views.steps import step_of_event
from memprof.views.timeline import grouped, samples
from memprof_dashboards.colors import CATEGORY_COLORS, GROUP_COLORS, OTHER_COLOR, STACKING
from memprof_dashboards.text import visible
from memprof_dashboards.views import DeviceView, WindowView

__all__ = ["MemoryFigure", "memory_figure"]

Ints = npt.NDArray[np.int64]

_SHOWN_GROUPS = 12
_BANDS = 600
"""Stretches of one phase that a page carries; shorter ones are drawn with their neighbour."""
_OOMS = 50
_NUMBER = re.compile(r"\.\d+(?=\.|$)")


class Layers(msgspec.Struct):
    """One way to split allocated bytes: a row of bytes per name, a column per sample."""

    names: list[str]
    colors: list[str]
    bytes: list[list[int]]


class StepMark(msgspec.Struct):
    """Where steps ``first`` to ``last`` lie; -1 where an axis does not know them."""

    first: int
    last: int
    start_us: int
    end_us: int
    start_event: int
    end_event: int


class Band(msgspec.Struct):
    """A stretch of one phase, between two samples."""

    phase: int
    first: int
    last: int


class OutOfMemoryMark(msgspec.Struct):
    """An allocation that the device refused."""

    sample: int
    event: int
    requested: int
    free: int
    stack: int


class MemoryFigure(msgspec.Struct):
    """Samples of a device's memory over time and over events; lists run over the samples."""

    time_us: list[int]
    """Since the run's origin; empty where the recorder kept no clock."""
    event: list[int]
    """Events of the device up to and including the sample."""
    allocated: list[int]
    reserved: list[int]
    action: list[int]
    size: list[int]
    stack: list[int]
    """What the event of the sample did; action -1 at the start of a window."""
    windows: list[int]
    """The sample that each window begins with."""
    layers: dict[str, Layers]
    """By ``category``, ``module`` and ``site``; a split that has one group only is left out."""
    inferred: bool
    phases: list[Band]
    steps: list[StepMark]
    ooms: list[OutOfMemoryMark]
    peak_sample: int
    peak_reserved_sample: int
    capacity: int
    events: int


def memory_figure(view: DeviceView, count: int) -> MemoryFigure | None:
    """About ``2 * count`` samples of the device's windows; None where nothing was recorded."""
    windows = [w for w in view.windows if len(w.trace.events)]
    if not windows or is_bare_state(view.run):
        return None
    total = sum(len(w.line.allocated) for w in windows)
    entries = [
        _entries_to_draw(w, max(count * len(w.line.allocated) // total, 64)) for w in windows
    ]
    starts = np.concatenate([[0], np.cumsum([len(at) for at in entries])]).astype(int)
    clocked = all(w.clocked for w in windows)
    allocated = _concatenate(windows, entries, lambda w, at: w.line.allocated[at])
    reserved = _concatenate(windows, entries, lambda w, at: w.line.reserved[at])
    events_of_windows = [_event_text(view, w, at) for w, at in zip(windows, entries, strict=True)]
    time_us = _concatenate(windows, entries, lambda w, at: w.times(at, view.origin))
    return MemoryFigure(
        time_us=time_us.tolist() if clocked else [],
        event=_concatenate(windows, entries, lambda w, at: w.first_event + at).tolist(),
        allocated=allocated.tolist(),
        reserved=reserved.tolist(),
        action=[a for h in events_of_windows for a in h[0]],
        size=[s for h in events_of_windows for s in h[1]],
        stack=[s for h in events_of_windows for s in h[2]],
        windows=starts[:-1].tolist(),
        layers=_all_layers(windows, entries),
        inferred=windows[0].owners.inferred,
        phases=[
            b
            for w, at, s in zip(windows, entries, starts[:-1], strict=True)
            for b in _bands(w, at, int(s))
        ],
        steps=_marks(view, windows, clocked=clocked),
        ooms=[
            o
            for w, at, s in zip(windows, entries, starts[:-1], strict=True)
            for o in _ooms(view, w, at, int(s))
        ],
        peak_sample=int(allocated.argmax()),
        peak_reserved_sample=int(reserved.argmax()),
        capacity=view.device.info.total_bytes,
        events=view.device.events,
    )


def _entries_to_draw(window: WindowView, count: int) -> Ints:
    """The shape, the moment of every out-of-memory, and what stood just before the peak."""
    oom = np.flatnonzero(window.trace.events.action == Action.OOM)[:_OOMS] + 1
    peak = np.array([window.line.peak_allocated.event + 1])
    return np.unique(np.concatenate([samples(window.line, count), oom, peak]))


def _concatenate(
    windows: Sequence[WindowView],
    entries: Sequence[Ints],
    values: Callable[[WindowView, Ints], Ints],
) -> Ints:
    return np.concatenate([values(w, at) for w, at in zip(windows, entries, strict=True)])


def _event_text(
    view: DeviceView, window: WindowView, at: Ints
) -> tuple[list[int], list[int], list[int]]:
    events = window.trace.events
    event = at[at > 0] - 1
    none = [-1] if len(event) < len(at) else []
    return (
        none + events.action[event].astype(int).tolist(),
        [0 for _ in none] + events.size[event].tolist(),
        [0 for _ in none] + view.book.numbers(events.stack[event]),
    )


# -- who owned the bytes ---------------------------------------------------------------------------


def _all_layers(windows: Sequence[WindowView], entries: Sequence[Ints]) -> dict[str, Layers]:
    splits = {"category": _category_layers(windows, entries)}
    picks: dict[str, Callable[[OwnerGroupings], Grouping]] = {
        "module": lambda owners: _alike(owners.module),
        "site": lambda owners: owners.line,
    }
    for name, pick in picks.items():
        layers = _named_layers(windows, entries, pick)
        if len(layers.names) > 1:
            splits[name] = layers
    return splits


def _alike(modules: Grouping) -> Grouping:
    """Where modules are too many to tell apart, those that differ in a number only are one.

    ``GPT.blocks.0.mlp`` … ``GPT.blocks.47.mlp`` become ``GPT.blocks.*.mlp``.
    """
    if len(modules.names) <= _SHOWN_GROUPS:
        return modules
    index: dict[str, int] = {}
    rows = [index.setdefault(_NUMBER.sub(".*", n), len(index)) for n in modules.names]
    return Grouping(tuple(index), np.array(rows, dtype=np.int64)[modules.of])


def _category_layers(windows: Sequence[WindowView], entries: Sequence[Ints]) -> Layers:
    rows = np.concatenate(
        [
            grouped(w.line, w.owners.category.of, len(Category), at)
            for w, at in zip(windows, entries, strict=True)
        ],
        axis=1,
    )
    categories = [c for c in STACKING if rows[c].any()]
    names = windows[0].owners.category.names
    return Layers(
        [names[c] for c in categories],
        [CATEGORY_COLORS[c] for c in categories],
        [rows[c].tolist() for c in categories],
    )


def _named_layers(
    windows: Sequence[WindowView],
    entries: Sequence[Ints],
    pick: Callable[[OwnerGroupings], Grouping],
) -> Layers:
    """The largest groups and the rest; the windows of a run share their tables, hence the names."""
    groups = [pick(w.owners) for w in windows]
    names = groups[0].names
    weight = np.sum(
        [_weight(w, g, len(names)) for w, g in zip(windows, groups, strict=True)], axis=0
    )
    order = np.argsort(-weight, kind="stable")
    order = order[weight[order] > 0]
    groups_shown = order[:_SHOWN_GROUPS]
    slot = np.full(len(names), len(groups_shown), dtype=np.int64)
    slot[groups_shown] = np.arange(len(groups_shown))
    rows = np.concatenate(
        [
            grouped(w.line, slot[g.of], len(groups_shown) + 1, at)
            for w, g, at in zip(windows, groups, entries, strict=True)
        ],
        axis=1,
    )
    others = len(order) - len(groups_shown)
    labels = [visible(names[i]) for i in groups_shown] + [f"{others} others"]
    colors = [*GROUP_COLORS[: len(groups_shown)], OTHER_COLOR]
    used = len(labels) if others else len(labels) - 1
    return Layers(labels[:used], colors[:used], rows[:used].tolist())


def _weight(window: WindowView, grouping: Grouping, groups: int) -> npt.NDArray[np.float64]:
    """Bytes at the peak plus mean bytes over the window: what is large ever, or for long."""
    lives, events = window.line.lives, len(window.trace.events)
    alive = lives.alive_at(window.line.peak_allocated.event)
    length = (np.minimum(lives.free, events) - np.maximum(lives.alloc, 0)) / max(events, 1)
    weight: npt.NDArray[np.float64] = np.zeros(groups)
    weight += np.bincount(grouping.of, weights=lives.size * (alive + length), minlength=groups)
    return weight


# -- when ------------------------------------------------------------------------------------------


def _bands(window: WindowView, at: Ints, first: int) -> list[Band]:
    """Runs of samples in one phase; what is too short to see joins what was before."""
    phase = _phase_of_entries(window)[at]
    edges = np.flatnonzero(np.diff(phase)) + 1
    starts = np.concatenate([[0], edges])
    stops = np.concatenate([edges, [len(at) - 1]])
    bands: list[Band] = []
    least = (at[-1] - at[0]) / _BANDS
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        if bands and (phase[start] == bands[-1].phase or at[stop] - at[start] < least):
            bands[-1].last = first + stop
        else:
            bands.append(Band(int(phase[start]), first + start, first + stop))
    return [band for band in bands if band.phase != Phase.UNKNOWN and band.last > band.first]


def _phase_of_entries(window: WindowView) -> Ints:
    """The phase at every entry: as labelled, or that of the last allocation that tells one."""
    events, lives = window.trace.events, window.line.lives
    phase = np.zeros(len(events) + 1, dtype=np.int64)
    if window.owners.inferred:
        in_window = lives.alloc >= 0
        phase[lives.alloc[in_window] + 1] = window.owners.phase.of[in_window]
        last_entry = np.maximum.accumulate(np.where(phase > 0, np.arange(len(phase)), 0))
        return phase[last_entry]
    of_label = np.array([int(label.phase) for label in window.trace.tables.labels])
    phase[1:] = of_label[events.label]
    phase[0] = phase[1] if len(phase) > 1 else 0
    return phase


def _marks(view: DeviceView, windows: Sequence[WindowView], *, clocked: bool) -> list[StepMark]:
    steps = view.steps
    ranges = {} if clocked else {n: r for w in windows for n, r in _event_ranges(w).items()}
    marks = []
    for row in range(len(steps)):
        first, last = int(steps.first[row]), int(steps.last[row])
        start, end = int(steps.start_us[row]), int(steps.end_us[row])
        if clocked and end > 0:
            low, high = _events_between(windows, max(start, 0), end)
        else:
            low, high = ranges.get(first, (-1, -1))[0], ranges.get(last, (-1, -1))[1]
        marks.append(
            StepMark(first, last, _since(start, view.origin), _since(end, view.origin), low, high)
        )
    return marks


def _since(time_us: int, origin: int) -> int:
    return time_us - origin if time_us > 0 else NOT_RECORDED


def _events_between(windows: Sequence[WindowView], start: int, end: int) -> tuple[int, int]:
    """The events of the device between two moments; (-1, -1) where no window covers them."""
    for window in windows:
        if int(window.line.time_us[0]) <= end and start <= int(window.line.time_us[-1]):
            low, high = window.entry_at(start), window.entry_at(end)
            return window.first_event + low, window.first_event + high
    return NOT_RECORDED, NOT_RECORDED


def _event_ranges(window: WindowView) -> dict[int, tuple[int, int]]:
    """The first and the last event of every step, by labels."""
    step = step_of_event(window.trace)
    numbers, first = np.unique(step, return_index=True)
    ends = np.append(first[1:], len(step))
    first_event = window.first_event
    return {
        int(n): (first_event + int(a), first_event + int(b))
        for n, a, b in zip(numbers, first, ends, strict=True)
        if n >= 0
    }


def _ooms(view: DeviceView, window: WindowView, at: Ints, first: int) -> list[OutOfMemoryMark]:
    events = window.trace.events
    rows = np.flatnonzero(events.action == Action.OOM)[:_OOMS]
    stacks = view.book.numbers(events.stack[rows])
    return [
        OutOfMemoryMark(
            sample=first + int(np.searchsorted(at, row + 1)),
            event=window.first_event + int(row),
            requested=int(events.size[row]),
            free=int(events.address[row]),
            stack=stack,
        )
        for row, stack in zip(rows, stacks, strict=True)
    ]
