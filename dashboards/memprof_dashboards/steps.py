"""The figure "step by step": peak, end and reserved bytes of every step; no drawing."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from memprof.run import Steps
from memprof.trace import NOT_RECORDED
from memprof_dashboards.views import DeviceView

__all__ = ["StepsFigure", "steps_figure"]

_ROWS = 1500
"""Bars that a page carries; beyond, neighbours share one, with their highest peak."""


class StepsFigure(msgspec.Struct):
    """A bar per row; -1 where a figure was not measured. Times are since the run's origin."""

    first: list[int]
    last: list[int]
    start_us: list[int]
    end_us: list[int]
    allocated: list[int]
    peak_allocated: list[int]
    reserved: list[int]
    peak_reserved: list[int]
    traced: list[bool]
    """In a window with every allocation, not by counters alone."""


def steps_figure(view: DeviceView) -> StepsFigure | None:
    """The steps of a device; None where none were marked."""
    steps = view.steps
    if not len(steps):
        return None
    starts = np.unique(np.linspace(0, len(steps), min(_ROWS, len(steps)) + 1).astype(int)[:-1])
    ends = np.append(starts[1:], len(steps)) - 1
    return StepsFigure(
        first=steps.first[starts].tolist(),
        last=steps.last[ends].tolist(),
        start_us=_since(steps.start_us[starts], view.origin),
        end_us=_since(steps.end_us[ends], view.origin),
        allocated=steps.allocated[ends].tolist(),
        peak_allocated=np.maximum.reduceat(_peaks(steps), starts).tolist(),
        reserved=steps.reserved[ends].tolist(),
        peak_reserved=np.maximum.reduceat(steps.peak_reserved, starts).tolist(),
        traced=(np.maximum.reduceat(steps.window, starts) >= 0).tolist(),
    )


def _peaks(steps: Steps) -> npt.NDArray[np.int64]:
    highest: npt.NDArray[np.int64] = np.maximum(steps.peak_allocated, steps.allocated_max)
    return highest


def _since(times: npt.NDArray[np.int64], origin: int) -> list[int]:
    since: list[int] = np.where(times > 0, times - origin, NOT_RECORDED).tolist()
    return since
