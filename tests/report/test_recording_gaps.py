"""What a recording does not tell is said, in numbers where there are any."""

from __future__ import annotations

import pytest

from memprof.loading import load
from memprof.records import SCHEMA_VERSION, DeviceInfo, Header, Note, WindowRecord
from memprof.report.recording_gaps import recording_gaps
from memprof.run import DeviceRun, Run, Steps
from memprof.testing import TraceBuilder
from memprof.trace import NOT_RECORDED
from memprof.views.examination import examine
from tests import forks


def said_of(rest: int, windows: int = 1, *ends: str) -> tuple[str, ...]:
    """Three steps in a window; in 4 to 99, which follow as one row, ``rest`` bytes were allocated."""
    trace = TraceBuilder(device="cpu").alloc(512, "x").free("x").build()
    steps = Steps.build(
        4,
        first=[1, 2, 3, 4],
        last=[1, 2, 3, 99],
        allocated=[512, 512, 512, rest],
        window=[0, 0, 0, NOT_RECORDED],
    )
    device = DeviceRun("cpu", DeviceInfo("cpu", backend="cpu"), (trace,) * windows, steps)
    header = Header(schema=SCHEMA_VERSION, created_us=0)
    ended = tuple(WindowRecord(0, "start", end, 0, 1) for end in ends)
    return recording_gaps(examine(Run("", header, (device,), windows=ended)))


@pytest.mark.parametrize("windows", [1, 2])
def test_steps_without_counters_are_counted(windows):
    said = said_of(NOT_RECORDED, windows)
    assert "cpu: 3 of 99 steps were recorded" in said
    assert "cpu: between windows nothing was counted" in said
    assert not any("only counters were kept" in one for one in said)


def test_where_every_step_has_counters_only_single_allocations_are_missing():
    assert not any("nothing was counted" in one for one in said_of(512))
    assert "cpu: between its 2 windows only counters were kept" in said_of(512, 2)


@pytest.mark.parametrize(
    ("end", "told"),
    [
        ("allowance", "the allowance was used up; raise --allowance"),
        ("max_events", "the file held as many events as a window may have; raise --max-events"),
        ("max_bytes", "the file was as large as a window may make it; raise --max-bytes"),
    ],
)
def test_the_limit_that_ended_recording_is_named(end, told):
    said = said_of(NOT_RECORDED, 1, "gap", end, "steps")
    assert f"cpu: 3 of 99 steps were recorded, then {told}" in said


LOST = "temporaries inside operators were not seen, so the peak may be higher"
HOW = "; once `memprof native` has been run, recordings see them"
VALUES = (
    "values of tensors and what becomes of results were not seen, so waste that shows in them is "
    "not told; a recording with MEMPROF_NATIVE=0 sees them"
)
NOT_BUILT = Note("native", "the native part could not be built: no compiler")


@pytest.mark.parametrize(
    ("info", "notes", "told"),
    [
        (DeviceInfo("cpu", recorder="operators"), (), LOST + HOW),
        (
            DeviceInfo("cpu", recorder="operators", compiled=True),
            (),
            f"buffers of compiled graphs and {LOST}{HOW}",
        ),
        (DeviceInfo("cpu", recorder="operators"), (NOT_BUILT,), LOST),
        (DeviceInfo("cpu", recorder="allocator", compiled=True), (), VALUES),
        (DeviceInfo("cpu", compiled=True), (), None),  # a file that does not say what saw them
    ],
)
def test_what_was_not_seen_of_operators_is_said_by_what_recorded(info, notes, told):
    trace = TraceBuilder(device="cpu").alloc(512, "x").free("x").build()
    header = Header(schema=SCHEMA_VERSION, created_us=0)
    device = DeviceRun("cpu", info, (trace,), Steps.build(0))
    said = recording_gaps(examine(Run("", header, (device,), notes=notes)))
    assert [one for one in said if "were not seen" in one] == ([f"cpu: {told}"] if told else [])


def test_nothing_is_said_of_operators_where_none_was_recorded():
    header = Header(schema=SCHEMA_VERSION, created_us=0)
    device = DeviceRun("cpu", DeviceInfo("cpu", recorder="operators"), (), Steps.build(0))
    assert not any(
        "operators" in one for one in recording_gaps(examine(Run("", header, (device,))))
    )


PROGRAM = """
import sys, torch, memprof
double = lambda x: x * 2
if sys.argv[1] == "compiled":
    double = torch.compile(double, backend="eager")
with memprof.track(sys.argv[2], sources=("cpu",)):
    assert double(torch.ones(8)).sum() == 16
"""


@pytest.mark.parametrize("how", ["eager", "compiled"])
def test_a_recording_says_what_saw_its_allocations(tmp_path, how):
    pytest.importorskip("torch", reason="there is nothing to record without torch")
    file = tmp_path / "run.json"  # a process of its own: Dynamo leaves patches in torch
    done = forks.run(PROGRAM, how, file, MEMPROF_NATIVE="0")
    assert done.returncode == 0, done.stderr
    run = load(file)
    (cpu,) = run.devices
    assert (cpu.info.recorder, cpu.info.compiled) == ("operators", how == "compiled")
    graphs = "buffers of compiled graphs and " if how == "compiled" else ""
    assert f"cpu: {graphs}{LOST}{HOW}" in recording_gaps(examine(run))
