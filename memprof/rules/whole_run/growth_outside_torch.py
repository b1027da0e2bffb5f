"""growth-outside-torch: device memory of the process beyond torch's allocator grows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.oom.layouts import idle_bytes
from memprof.rules.case import Case
from memprof.rules.finding import Kind
from memprof.rules.rule import Advice
from memprof.rules.run_rule import RunMatch, RunRule
from memprof.run import DeviceRun, Run
from memprof.units import format_bytes
from memprof.views.device_readings import after_steps, reserved_then, series_of
from memprof.views.examination import Examination
from memprof.views.trend import level_rise

__all__ = ["RULE"]

_LEAST_RISE = 64 << 20
"""Libraries load kernels and workspaces as they are first used: less is their matter."""
_WORTH_A_CALL = 64 << 20
"""Cached bytes below which giving them back, and taking them again, is not worth its time."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class OutsideTorch(RunMatch):
    """Memory on a device beyond what torch's allocator reserves."""

    of_any_process: bool
    """The driver told the whole device's memory only: it may be another process's."""


class GrowthOutsideTorch(RunRule[OutsideTorch]):
    """NCCL, cuDNN, a library's own buffers, or CUDA contexts that are never destroyed."""

    name = "growth-outside-torch"
    summary = "device memory outside torch's allocator grows in every step"
    fixes = ("empty_cache",)
    kind = Kind.NON_TORCH

    def matches(self, examination: Examination) -> Iterator[OutsideTorch]:
        """Where NVML's figure less the reserved bytes at the step's end before keeps rising.

        NVML's figure for the process; where the driver does not know the process (containers), that
        of the whole device, which others share.
        """
        for device in examination.run.devices:
            yield from _of_device(examination.run, device)

    def title(self, match: OutsideTorch) -> str:
        """Say by how much, where, and whose it may be."""
        rate = format_bytes(match.rise.per_step if match.rise is not None else 0)
        whose = ", in this process or in another: the driver does not tell them apart"
        return (
            f"memory on {match.device} outside torch's allocator grows by {rate} per step"
            f"{whose if match.of_any_process else ''}"
        )

    def advice(self, match: OutsideTorch, case: Case) -> Iterator[Advice]:
        """Give cached segments back, where torch holds some that no tensor is in."""
        device = case.run.device(match.device)
        if device is None or not device.windows or device.windows[-1].modelled:
            return
        state = device.windows[-1].end
        cached = idle_bytes(state) if state is not None else 0
        if cached >= _WORTH_A_CALL:
            yield Advice(
                "empty_cache",
                f"{format_bytes(cached)} of segments hold no tensor: once before the part outside "
                "torch needs memory, it can be given back.",
                case.site,
            )


def _of_device(run: Run, device: DeviceRun) -> Iterator[OutsideTorch]:
    own = series_of(run, device.device, "process_used")
    used = own or series_of(run, device.device, "used")
    if used is None:
        return
    with_figures = (device.steps.reserved > 0) & (device.steps.end_us > 0)
    steps, outside = after_steps(
        device.steps.end_us[with_figures],
        device.steps.last[with_figures],
        used.time_us,
        used.values - reserved_then(device, used.time_us),
    )
    rise = level_rise(steps, outside)
    if rise is None or rise.per_step * (steps[-1] - steps[0]) < _LEAST_RISE:
        return
    total = device.info.total_bytes
    last = used.values[~np.isnan(used.values)][-1]
    yield OutsideTorch(
        device=device.device,
        nbytes=int(outside[-1]),
        first_step=int(steps[0]),
        last_step=int(steps[-1]),
        rise=rise,
        steps_left=(total - last) / rise.per_step if total > 0 else -1.0,
        tentative=own is None,
        of_any_process=own is None,
    )


RULE = GrowthOutsideTorch()
