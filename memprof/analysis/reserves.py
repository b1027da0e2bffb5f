"""Device memory that no tensor uses and that grows: reserved by torch, or outside of torch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from memprof.analysis.outside import reserved_then, series_of
from memprof.records import Site
from memprof.rules.finding import Found, Kind, Series
from memprof.run import DeviceRun, ReadingSeries, Run, Steps
from memprof.units import format_bytes, format_percent
from memprof.views.trend import WARM_UP, keeps_rising, theil_sen

__all__ = ["fragmentation", "non_torch"]

Floats = npt.NDArray[np.float64]

_LEAST_POINTS = 12
_LEAST_IDLE = 0.25
"""Of the reserved bytes: so much may lie idle between steps without anybody minding."""
_LEAST_OUTSIDE = 64 << 20
"""Libraries load kernels and workspaces as they are first used: less is their matter."""


def fragmentation(run: Run) -> tuple[Found, ...]:
    """Reserved bytes that no tensor uses, where they keep growing or were in the way of an OOM.

    A modelled device (a CPU) has no reserved bytes of its own and is left out.
    ``bytes`` are the idle ones at the last step's end.
    """
    return tuple(found for device in run.devices for found in _fragmented(device))


def _fragmented(device: DeviceRun) -> Iterator[Found]:
    steps = device.steps
    known = (steps.reserved > 0) & (steps.allocated >= 0)
    if device.device == "cpu" or not known.any():
        return
    x, idle = _points(steps, known, steps.reserved - steps.allocated)
    share = float(idle[-1] / steps.reserved[known][-1])
    ooms = int(steps.ooms[known][-1])
    slope = theil_sen(x, idle)
    grows = len(x) >= _LEAST_POINTS and slope > 0 and keeps_rising(idle)
    if share < _LEAST_IDLE or not (grows or ooms > 0):
        return
    often = f", {format_bytes(slope)} more a step" if grows else ""
    yield Found(
        kind=Kind.FRAGMENTATION,
        device=device.device,
        site=Site(),
        title=f"{format_bytes(idle[-1])} reserved and not used by any tensor "
        f"({format_percent(idle[-1], steps.reserved[known][-1])} of what is reserved){often}",
        bytes_per_step=slope if grows else 0.0,
        bytes=int(idle[-1]),
        confidence=0.8 if grows else 0.6,
        first_step=int(x[0]),
        last_step=int(x[-1]),
        series=Series(x.astype(np.int64), idle.astype(np.int64)),
    )


def non_torch(run: Run) -> tuple[Found, ...]:
    """Memory of this process on the device beyond what torch's allocator reserves, where it grows.

    From NVML's figure for the process less the reserved bytes at the step's end before. Where the
    driver does not know the process (containers), from the whole device's, which others share.
    """
    return tuple(found for device in run.devices for found in _outside(run, device))


def _outside(run: Run, device: DeviceRun) -> Iterator[Found]:
    own = series_of(run, device.device, "process_used")
    used = own or series_of(run, device.device, "used")
    if used is None:
        return
    x, outside = _by_step(used, device)
    if len(x) < _LEAST_POINTS or not keeps_rising(outside):
        return
    slope = theil_sen(x, outside)
    if slope <= 0 or slope * (x[-1] - x[0]) < _LEAST_OUTSIDE:
        return
    total = device.info.total_bytes
    last = used.values[~np.isnan(used.values)][-1]
    whose = "" if own else ", in this process or in another: the driver does not tell them apart"
    yield Found(
        kind=Kind.NON_TORCH,
        device=device.device,
        site=Site(),
        title=f"{format_bytes(slope)} a step grow on {device.device} outside of torch's allocator"
        f"{whose}",
        bytes_per_step=slope,
        bytes=int(outside[-1]),
        confidence=0.7 if own else 0.5,
        first_step=int(x[0]),
        last_step=int(x[-1]),
        steps_left=(total - last) / slope if total > 0 else -1.0,
        series=Series(x.astype(np.int64), outside.astype(np.int64)),
    )


def _by_step(used: ReadingSeries, device: DeviceRun) -> tuple[Floats, Floats]:
    """Bytes beyond torch's at the first reading after each step's end, after warm-up."""
    steps = device.steps
    known = (steps.reserved > 0) & (steps.end_us > 0)
    end, number = steps.end_us[known], steps.last[known]
    at = np.searchsorted(end, used.time_us, side="right") - 1
    outside = used.values - reserved_then(device, used.time_us)
    there = np.flatnonzero((at >= WARM_UP) & ~np.isnan(outside))
    x = number[at[there]].astype(np.float64)
    first = np.diff(x, prepend=-1.0) > 0
    return x[first], outside[there][first]


def _points(
    steps: Steps, known: npt.NDArray[np.bool_], values: npt.NDArray[np.int64]
) -> tuple[Floats, Floats]:
    """Steps and values after warm-up."""
    x, y = steps.last[known].astype(np.float64), values[known].astype(np.float64)
    first = min(WARM_UP, len(x) - 1)
    return x[first:], y[first:]
