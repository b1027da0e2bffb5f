"""host-memory-growth: memory of the process that no tensor holds grows in every step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from memprof.rules.finding import Kind
from memprof.rules.run_rule import RunMatch, RunRule
from memprof.rules.same_memory import ANY_GROWTH
from memprof.run import ReadingSeries, Run
from memprof.units import format_bytes
from memprof.views.device_readings import after_steps, series_of
from memprof.views.examination import Examination
from memprof.views.time_to_full import free_on_host
from memprof.views.trend import level_rise, theil_sen

__all__ = ["RULE"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_LEAST_RISE = 256 << 20
"""Imports, thread stacks, the allocators' arenas and what memprof records settle below that."""
_LASTING = 0.5
"""Slope of the second half over the whole's: below, it settles down. And rise of the process over
that of what no tensor holds: below, tensors that were freed leave it."""


class HostMemoryGrowth(RunRule[RunMatch]):
    """Arrays, texts, or a library's buffers that pile up beside the tensors."""

    name = "host-memory-growth"
    summary = "host memory that no tensor holds grows in every step"
    kind = Kind.HOST_GROWTH
    hint = (
        "look for arrays, texts or lists of numbers that are kept: Python's `tracemalloc` "
        "names the lines that allocate them, where they are Python's or numpy's"
    )
    # Tensors and graphs that grow on the host leave such memory around them: that is theirs.
    yields_to = ("growing-graph", "profiled-throughout", ANY_GROWTH)

    def matches(self, examination: Examination) -> Iterator[RunMatch]:
        """Anonymous memory of this process beyond its tensors, where both keep rising.

        Resident bytes less what is shared or backed by files (a data set that is mapped into memory
        fills up without harm), less the most that tensors of the CPU have taken until then, where
        those were recorded, and less what C's allocator has in no use, where it told so to the end:
        what is freed stays with the process. Runs in which the shared bytes were not read are not
        judged.
        """
        run = examination.run
        if run.header.dry_run is not None:
            return  # what a simulated card holds, and what stands in for it, is on the host
        device = max(run.devices, key=lambda one: len(one.steps), default=None)
        rss, shared = series_of(run, "host", "rss"), series_of(run, "host", "shared")
        if device is None or rss is None or shared is None or len(rss.values) != len(shared.values):
            return
        anonymous = rss.values - shared.values - _free_in_heap(run, rss)
        own = anonymous - _tensors(run, rss.time_us)
        ends = device.steps.end_us > 0
        end_us, numbers = device.steps.end_us[ends], device.steps.last[ends]
        _, anonymous = after_steps(end_us, numbers, rss.time_us, anonymous)
        steps, own = after_steps(end_us, numbers, rss.time_us, own)
        if len(own) > 1 and steps[-1] == numbers[-1] and own[-1] < own[-2]:
            # What is given back as the loop's function is left was no less kept until then.
            steps, own, anonymous = steps[:-1], own[:-1], anonymous[:-1]
        rise = level_rise(steps, own)
        if rise is None or rise.per_step * (steps[-1] - steps[0]) < _LEAST_RISE:
            return
        # What freed tensors leave behind may stay with the process: then the process does not grow.
        if anonymous[-1] - anonymous[0] < _LASTING * (own[-1] - own[0]):
            return
        if theil_sen(steps[len(steps) // 2 :], own[len(own) // 2 :]) < _LASTING * rise.per_step:
            return
        free = free_on_host(run)
        yield RunMatch(
            device="host",
            nbytes=int(own[-1] - own[0]),
            first_step=int(steps[0]),
            last_step=int(steps[-1]),
            rise=rise,
            steps_left=free / rise.per_step if free >= 0 else -1.0,
        )

    def title(self, match: RunMatch) -> str:
        """Say by how much, and that no tensor is it."""
        rate = format_bytes(match.rise.per_step if match.rise is not None else 0)
        return f"host memory that no tensor holds grows by {rate} per step"


def _free_in_heap(run: Run, rss: ReadingSeries) -> Floats:
    """What of the process's heap was free at each moment; zeros where that was not told of all."""
    free = series_of(run, "host", "heap_free")
    if free is None or len(free.values) != len(rss.values) or np.isnan(free.values).any():
        return np.zeros(len(rss.values))
    return np.minimum(free.values, rss.values).astype(np.float64)


def _tensors(run: Run, time_us: Ints) -> Floats:
    """The most bytes of recorded CPU tensors until the last step's end before each moment."""
    steps = next((d.steps for d in run.devices if d.device == "cpu" and len(d.steps)), None)
    if steps is None:
        return np.zeros(len(time_us))
    at = np.searchsorted(steps.end_us, time_us, side="right") - 1
    most = np.maximum.accumulate(np.maximum(steps.allocated, steps.peak_allocated))
    return np.where(at >= 0, np.maximum(most[np.maximum(at, 0)], 0), 0).astype(np.float64)


RULE = HostMemoryGrowth()
