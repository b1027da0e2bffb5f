"""What a CPU's peak lacks where not all of its memory was seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from memprof.loading import load
from memprof.records import SCHEMA_VERSION, DeviceInfo, Header, WindowRecord
from memprof.report.peak_gaps import PeakGap, peak_gaps
from memprof.report.summary import summarize
from memprof.run import DeviceRun, Run, Steps
from memprof.testing import TraceBuilder
from memprof.trace import NOT_RECORDED
from memprof.views.examination import examine
from tests import forks

BETWEEN, COMPILED, OPERATORS = PeakGap.BETWEEN_WINDOWS, PeakGap.COMPILED, PeakGap.OPERATORS


def gaps_of(info: DeviceInfo, *ends: str, peak: int = NOT_RECORDED) -> tuple[PeakGap, ...]:
    """Three steps in a window, and a fourth after it in which ``peak`` was counted."""
    trace = TraceBuilder(device="cpu").alloc(512, "x").free("x").build()
    steps = Steps.build(
        4,
        first=[0, 1, 2, 3],
        last=[0, 1, 2, 3],
        peak_allocated=[512, 512, 512, peak],
        window=[0, 0, 0, NOT_RECORDED],
    )
    windows = tuple(WindowRecord(0, "start", end, 0, 1) for end in ends)
    device = DeviceRun(info.device, info, (trace,), steps)
    run = Run("", Header(schema=SCHEMA_VERSION, created_us=0), (device,), windows=windows)
    return peak_gaps(examine(run).devices[0], run)


@pytest.mark.parametrize(
    ("info", "ends", "peak", "gaps"),
    [
        (DeviceInfo("cpu", recorder="operators"), ("stop",), NOT_RECORDED, (OPERATORS,)),
        (
            DeviceInfo("cpu", recorder="operators", compiled=True),
            ("stop",),
            NOT_RECORDED,
            (COMPILED, OPERATORS),
        ),
        (
            DeviceInfo("cpu", recorder="operators"),
            ("allowance",),
            NOT_RECORDED,
            (BETWEEN, OPERATORS),
        ),
        (DeviceInfo("cpu", recorder="operators"), (), NOT_RECORDED, (OPERATORS,)),  # killed in it
        (DeviceInfo("cpu", recorder="allocator", compiled=True), ("stop",), NOT_RECORDED, ()),
        (DeviceInfo("cpu", recorder="allocator"), ("allowance",), NOT_RECORDED, (BETWEEN,)),
        (DeviceInfo("cpu", recorder="allocator"), ("allowance", "stop"), 512, ()),
        (DeviceInfo("cpu"), ("allowance",), NOT_RECORDED, ()),  # a file that does not say
        (DeviceInfo("cuda:0"), ("allowance",), NOT_RECORDED, ()),  # the device has counted them
    ],
)
def test_what_is_missing_follows_from_what_recorded_and_how_long(
    info: DeviceInfo, ends: tuple[str, ...], peak: int, gaps: tuple[PeakGap, ...]
) -> None:
    assert gaps_of(info, *ends, peak=peak) == gaps


PROGRAM = """
import sys, torch, memprof
made = torch.zeros
if sys.argv[1] == "compiled":
    made = torch.compile(lambda n: torch.zeros(n), backend="eager")
events = {"short": 40}.get(sys.argv[1], 1_000_000)
with memprof.track(sys.argv[2], sources=("cpu",), max_events=events):
    for step in range(40):
        made(1 << 10).sum()
        memprof.step()
    made(1 << 20).sum()
    memprof.step()
"""


@pytest.mark.parametrize(
    ("how", "gaps", "line"),
    [
        ("whole", (OPERATORS,), "peak 4.00 MiB on cpu"),
        ("compiled", (COMPILED, OPERATORS), "peak at least 4.00 MiB on cpu"),
        ("short", (BETWEEN, OPERATORS), "peak at least "),
    ],
)
def test_the_verdict_says_at_least_where_steps_or_graphs_are_missing(
    tmp_path: Path, how: str, gaps: tuple[PeakGap, ...], line: str
) -> None:
    file = tmp_path / "run.json"
    done = forks.run(PROGRAM, how, file, MEMPROF_NATIVE="0")
    assert done.returncode == 0, done.stderr
    summary = summarize(examine(load(file)))
    assert summary.devices[0].peak_gaps == gaps
    assert summary.verdict.line.startswith(line)
    assert (summary.devices[0].peak_allocated_bytes > 1 << 22) == (how != "short")
