"""Where steps begin and end, what each held, and how fast the floor rises.

Steps come from the run's own counters, or from `loop_steps`; else from profiler or optimizer
annotations of a plain snapshot.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

from memprof.run import DeviceRun, Steps
from memprof.trace import NOT_RECORDED, OPTIMIZER_STEP, PROFILER_STEP, Action, Trace
from memprof.views.timeline import Timeline
from memprof.views.trend import WARM_UP, Trend, trend

__all__ = ["allocated_trend", "device_steps", "is_lone_request", "step_of_event"]

Ints = npt.NDArray[np.int64]

_PROFILER_STEP = re.compile(PROFILER_STEP + r"(\d{1,15})$", re.ASCII)
_FEWEST_SPACED = 12
"""Rows at regular steps that make a trend; else the rows are taken at shorter distances."""


def device_steps(device: DeviceRun, lines: tuple[Timeline, ...]) -> Steps:
    """The steps of a device, with allocated, reserved and peaks from the trace where it has them.

    ``lines`` are the timelines of ``device.windows``. Counters say more than nothing, but only the
    trace knows a step's own peak (and, on a CPU, the modelled reserved bytes).
    """
    steps = device.steps
    if not len(steps):
        step_tables = [_annotate(t, line) for t, line in zip(device.windows, lines, strict=True)]
        return Steps.concatenate(step_tables)
    columns = {name: getattr(steps, name).copy() for name in Steps.names()}
    for number, (trace, line) in enumerate(zip(device.windows, lines, strict=True)):
        rows = np.flatnonzero((steps.window == number) & (steps.first == steps.last))
        _fill_from_trace(columns, rows, trace, line)
    return Steps(**columns)


def _fill_from_trace(columns: dict[str, Ints], rows: Ints, trace: Trace, line: Timeline) -> None:
    step = step_of_event(trace)
    if not len(rows) or not len(step):
        return
    for row in rows.tolist():
        number = columns["first"][row]
        # Events are in order of their steps: a step's entries are one run of the timeline.
        low, high = np.searchsorted(step, [number, number + 1])
        allocated, reserved = line.allocated[low : high + 1], line.reserved[low : high + 1]
        if columns["allocated"][row] not in (NOT_RECORDED, allocated[-1]):
            continue  # the window ended in this step: its last events are not in the trace
        columns["allocated"][row] = allocated[-1]
        columns["allocated_min"][row] = columns["allocated_max"][row] = allocated[-1]
        columns["peak_allocated"][row] = allocated.max()
        columns["reserved"][row] = reserved[-1]
        columns["peak_reserved"][row] = reserved.max()


def step_of_event(trace: Trace) -> Ints:
    """The step of every event, never falling; -1 before the first label that names one."""
    steps = np.array([label.step for label in trace.tables.labels], dtype=np.int64)
    if not len(trace.events):
        return np.zeros(0, dtype=np.int64)
    return np.maximum.accumulate(steps[trace.events.label])


def _annotate(trace: Trace, line: Timeline) -> Steps:
    """Steps from ``ProfilerStep#n`` stretches, else from the ends of ``Optimizer.step#…``."""
    marks = [
        (int(m[1]), a.start_us, a.end_us)
        for a in trace.annotations
        if (m := _PROFILER_STEP.match(a.name))
    ]
    if not marks:
        ends = sorted(
            {
                a.end_us
                for a in trace.annotations
                if a.name.startswith(OPTIMIZER_STEP) and a.end_us > 0
            }
        )
        marks = [
            (n, start, end) for n, (start, end) in enumerate(zip([0, *ends], ends, strict=False))
        ]
    times = trace.events.time_us
    timed = len(times) > 0 and int(times[0]) != NOT_RECORDED
    rows = [_step_row(line, times, *mark) for mark in marks if timed and mark[2] > 0]
    return Steps.concatenate([row for row in rows if row is not None])


def _step_row(line: Timeline, times: Ints, number: int, start: int, end: int) -> Steps | None:
    low, high = np.searchsorted(times, [start, end + 1])
    if high == 0 or low == len(times) or low > high:  # a damaged one may end before it begins
        return None
    allocated, reserved = line.allocated[low : high + 1], line.reserved[low : high + 1]
    return Steps.build(
        1,
        first=[number],
        last=[number],
        start_us=[max(start, int(times[0]))],
        end_us=[end],
        allocated=allocated[-1:],
        allocated_min=allocated[-1:],
        allocated_max=allocated[-1:],
        peak_allocated=[allocated.max()],
        reserved=reserved[-1:],
        peak_reserved=[reserved.max()],
        window=[0],
    )


def allocated_trend(steps: Steps) -> Trend | None:
    """The trend of allocated bytes at step ends after warm-up; None with fewer than five steps.

    Where a row covers many steps, as between windows, no stretch counts for more by its more rows.
    """
    with_figures = (steps.allocated != NOT_RECORDED) & (steps.first >= WARM_UP)
    last, row = np.unique(
        steps.last[with_figures], return_index=True
    )  # a damaged file repeats steps
    places = _at_regular_steps(last)
    values = steps.allocated[with_figures][row][places]
    return trend(last[places].astype(np.float64), values.astype(np.float64))


def _at_regular_steps(last: Ints) -> Ints:
    """Places of an ascending series of steps about as far apart as its rows are where few are.

    All of them where there are as many everywhere; as many as make a trend, in any case.
    """
    width = int(np.diff(last).max(initial=1))
    while width > 1:
        of_width = last // width
        ends: Ints = np.append(np.flatnonzero(np.diff(of_width)), len(last) - 1)
        if len(ends) >= _FEWEST_SPACED:
            return ends
        width //= 2
    return np.arange(len(last))


def is_lone_request(trace: Trace) -> bool:
    """Whether a window is a failure between windows: the failed request, and what was held."""
    return len(trace.events) == 1 and int(trace.events.action[0]) == Action.OOM


def ooms(trace: Trace) -> Ints:
    """Events at which the device ran out of memory."""
    return np.flatnonzero(trace.events.action == Action.OOM)
