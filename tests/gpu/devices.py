"""The device that the tests on a GPU use, by its name: default sources have others beside it."""

from __future__ import annotations

from memprof.run import DeviceRun, Run
from memprof.views.examination import DeviceExamination, examine

__all__ = ["DEVICE", "examined", "recorded"]

DEVICE = "cuda:0"


def recorded(run: Run) -> DeviceRun:
    """What was recorded of it."""
    device = run.device(DEVICE)
    assert device is not None, [one.device for one in run.devices]
    return device


def examined(run: Run) -> DeviceExamination:
    """The same with what is derived."""
    (device,) = (one for one in examine(run).devices if one.name == DEVICE)
    return device
