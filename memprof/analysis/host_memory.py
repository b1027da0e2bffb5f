"""Memory of the process on the host that no tensor holds and that grows from step to step.

What grows on the host within autograd's graphs is told, with its holder, by `host_growth`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from memprof.analysis.outside import series_of
from memprof.records import Site
from memprof.rules.finding import Found, Kind, Series
from memprof.run import DeviceRun, Run
from memprof.units import format_bytes
from memprof.views.trend import WARM_UP, keeps_rising, theil_sen

__all__ = ["host_memory"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_LEAST_POINTS = 12
_LEAST_RISE = 256 << 20
"""Imports, thread stacks, the allocators' arenas and what memprof records settle below that."""
_LASTING = 0.5
"""Slope of the second half over the whole's: below, it settles down."""


def host_memory(run: Run) -> tuple[Found, ...]:
    """Anonymous memory of this process beyond its tensors, where it keeps rising.

    Resident bytes less what is shared or backed by files (a data set that is mapped into memory
    fills up without harm), less the tensors of the CPU where those were recorded. Runs in which the
    shared bytes were not read are not judged.
    """
    device = max(run.devices, key=lambda one: len(one.steps), default=None)
    rss, shared = series_of(run, "host", "rss"), series_of(run, "host", "shared")
    if device is None or rss is None or shared is None or len(rss.values) != len(shared.values):
        return ()
    own = rss.values - shared.values - _tensors(run, rss.time_us)
    x, own = _by_step(device, rss.time_us, own)
    if len(x) < _LEAST_POINTS or not keeps_rising(own):
        return ()
    slope, late = theil_sen(x, own), theil_sen(x[len(x) // 2 :], own[len(x) // 2 :])
    if slope * (x[-1] - x[0]) < _LEAST_RISE or late < _LASTING * slope:
        return ()
    found = Found(
        kind=Kind.HOST_GROWTH,
        device="host",
        site=Site(),
        title=f"{format_bytes(slope)} a step grow in the host's memory, held by no tensor",
        bytes_per_step=slope,
        bytes=int(own[-1] - own[0]),
        confidence=0.7,
        first_step=int(x[0]),
        last_step=int(x[-1]),
        steps_left=_available(run) / slope,
        series=Series(x.astype(np.int64), own.astype(np.int64)),
    )
    return (found,)


def _available(run: Run) -> float:
    """What the machine had left at the last look; -1 where it did not say."""
    series = series_of(run, "host", "available")
    return -1.0 if series is None else float(series.values[~np.isnan(series.values)][-1])


def _tensors(run: Run, time_us: Ints) -> Floats:
    """Bytes of recorded CPU tensors at the last step's end before each moment."""
    steps = next((d.steps for d in run.devices if d.device == "cpu" and len(d.steps)), None)
    if steps is None:
        return np.zeros(len(time_us))
    at = np.searchsorted(steps.end_us, time_us, side="right") - 1
    held = np.maximum(steps.allocated, 0).astype(np.float64)
    return np.where(at >= 0, held[np.maximum(at, 0)], 0.0)


def _by_step(device: DeviceRun, time_us: Ints, values: Floats) -> tuple[Floats, Floats]:
    """The first reading after each step's end, after warm-up."""
    steps = device.steps
    known = steps.end_us > 0
    at = np.searchsorted(steps.end_us[known], time_us, side="right") - 1
    there = np.flatnonzero((at >= WARM_UP) & ~np.isnan(values))
    x = steps.last[known][at[there]].astype(np.float64)
    first = np.diff(x, prepend=-1.0) > 0
    return x[first], values[there][first]
