"""What of a CPU's memory a recording did not see, so that its peak may have been higher."""

from __future__ import annotations

import enum

import numpy as np

from memprof.run import Run
from memprof.trace import NOT_RECORDED
from memprof.views.examination import DeviceExamination

__all__ = ["PeakGap", "peak_gaps"]

_OPERATORS, _ALLOCATOR = "operators", "allocator"
"""What saw a CPU's allocations, as `DeviceInfo.recorder` names it."""
_TO_THE_END = "stop"
"""Of a window that lasted as long as the recording."""


class PeakGap(str, enum.Enum):
    """A part of the memory that was not seen."""

    BETWEEN_WINDOWS = "what came between windows"
    COMPILED = "buffers of compiled graphs"
    OPERATORS = "temporaries inside operators"


def peak_gaps(device: DeviceExamination, run: Run) -> tuple[PeakGap, ...]:
    """What a peak lacks, that which may be most first; nothing of devices with counters."""
    if device.name != "cpu" or len(run.devices) > 1 or not device.windows:
        return ()  # beside CUDA the CPU is no subject of the recording
    info = device.device.info
    gaps = [PeakGap.BETWEEN_WINDOWS] if _has_unseen_time(device, run) else []
    if info.recorder == _OPERATORS:
        gaps += [PeakGap.COMPILED] if info.compiled else []
        gaps.append(PeakGap.OPERATORS)
    return tuple(gaps)


def _has_unseen_time(device: DeviceExamination, run: Run) -> bool:
    """Whether there was a time without a window and without a counter of its peak."""
    recorder = device.device.info.recorder
    if recorder not in (_OPERATORS, _ALLOCATOR):
        return False
    if all(window.end == _TO_THE_END for window in run.windows):
        return False
    if recorder == _OPERATORS:
        return True
    steps = device.device.steps
    lacks = (steps.window == NOT_RECORDED) & (steps.peak_allocated == NOT_RECORDED)
    return not len(steps) or bool(np.any(lacks))
