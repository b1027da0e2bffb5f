"""Reserved but unallocated memory at step ends: what torch holds from the driver for no tensor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memprof.run import DeviceRun
from memprof.units import format_bytes, format_percent
from memprof.views.trend import WARM_UP

__all__ = ["UnallocatedReserve", "unallocated_reserve"]

_LEAST_SHARE = 0.25
"""Of the reserved bytes: so much may be unallocated between steps without anybody minding."""


@dataclass(frozen=True, slots=True, eq=False)
class UnallocatedReserve:
    """How much of a device was reserved and in no tensor, step by step after the warm-up."""

    steps: npt.NDArray[np.float64]
    unallocated: npt.NDArray[np.float64]
    reserved: int
    """At the last of the steps."""
    ooms: int
    """Failed allocations until then."""

    @property
    def nbytes(self) -> int:
        """Reserved and in no tensor at the last of the steps."""
        return int(self.unallocated[-1])

    def __str__(self) -> str:
        share = format_percent(self.nbytes, self.reserved)
        return f"{format_bytes(self.nbytes)} ({share}) of the reserved memory is unallocated"


def unallocated_reserve(device: DeviceRun) -> UnallocatedReserve | None:
    """That of a device, where it is much in the end; None also where nothing was measured.

    A modelled device (a CPU) has no reserved bytes of its own and is left out.
    """
    steps = device.steps
    with_figures = (steps.reserved > 0) & (steps.allocated >= 0)
    if device.device == "cpu" or not with_figures.any():
        return None
    unallocated = (steps.reserved - steps.allocated)[with_figures].astype(np.float64)
    reserved = int(steps.reserved[with_figures][-1])
    if unallocated[-1] < _LEAST_SHARE * reserved:
        return None
    first = min(WARM_UP, len(unallocated) - 1)
    return UnallocatedReserve(
        steps.last[with_figures][first:].astype(np.float64),
        unallocated[first:],
        reserved,
        int(steps.ooms[with_figures][-1]),
    )
