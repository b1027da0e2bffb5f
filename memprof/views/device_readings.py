"""Device memory that is not torch's, over time: this process's beyond the allocator, and others'.

From what NVML read and what the allocator held at step ends; whether any of it grows is for a rule
to say.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from memprof.run import DeviceRun, ReadingSeries, Run
from memprof.views.trend import WARM_UP

__all__ = [
    "PROCESS",
    "after_steps",
    "beyond_torch",
    "most",
    "other_processes",
    "reserved_then",
    "series_of",
]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

PROCESS = "used by "
"""What the names of other processes' series begin with; then the program, then its PID."""


def series_of(run: Run, device: str, name: str) -> ReadingSeries | None:
    """One sampled value of a device that was read at least once."""
    for series in run.readings:
        if series.device == device and series.name == name and not np.isnan(series.values).all():
            return series
    return None


def after_steps(
    end_us: Ints, numbers: Ints, time_us: Ints, values: Floats
) -> tuple[Floats, Floats]:
    """The numbers of steps, and the first value that was read after the end of each.

    Steps without a reading are left out, and so are those of the warm-up. ``end_us`` and
    ``numbers`` are of the steps, ``time_us`` and ``values`` of the readings.
    """
    at = np.searchsorted(end_us, time_us, side="right") - 1
    there = np.flatnonzero((at >= WARM_UP) & ~np.isnan(values))
    steps = numbers[at[there]].astype(np.float64)
    first = np.diff(steps, prepend=-1.0) > 0
    return steps[first], values[there][first]


def reserved_then(device: DeviceRun, time_us: Ints) -> Floats:
    """What torch had reserved at the last step's end before each moment; NaN before the first."""
    steps = device.steps
    with_figures = (steps.reserved > 0) & (steps.end_us > 0)
    if not with_figures.any():
        return np.full(len(time_us), np.nan)
    order = np.argsort(steps.end_us[with_figures], kind="stable")
    end, reserved = steps.end_us[with_figures][order], steps.reserved[with_figures][order]
    at = np.searchsorted(end, time_us, side="right") - 1
    return np.where(at >= 0, reserved[np.maximum(at, 0)], np.nan)


def beyond_torch(run: Run, device: DeviceRun) -> ReadingSeries | None:
    """Bytes of this process on the device beyond what torch's allocator reserved.

    The CUDA context, cuBLAS and cuDNN workspaces, NCCL and other libraries. None where the driver
    does not tell this process's bytes (in a container it may know it by another PID).
    """
    used = series_of(run, device.device, "process_used")
    if used is None:
        return None
    beyond = np.maximum(used.values - reserved_then(device, used.time_us), 0.0)
    return replace(used, name="beyond_torch", values=beyond)


def other_processes(run: Run, device: str) -> tuple[ReadingSeries, ...]:
    """Bytes of each named other process on the device, the one that had most first."""
    processes = [r for r in run.readings if r.device == device and r.name.startswith(PROCESS)]
    return tuple(sorted(processes, key=lambda series: -most(series)))


def most(series: ReadingSeries | None) -> int:
    """The highest value of a series; -1 where there is none."""
    if series is None or np.isnan(series.values).all():
        return -1
    return int(np.nanmax(series.values))
