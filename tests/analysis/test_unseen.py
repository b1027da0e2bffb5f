"""What a recording does not tell is said, in numbers where there are any."""

from __future__ import annotations

import pytest

from memprof.analysis.unseen import unseen
from memprof.records import SCHEMA_VERSION, DeviceInfo, Header, WindowRecord
from memprof.run import DeviceRun, Run, Steps
from memprof.testing import TraceBuilder
from memprof.trace import NOT_RECORDED
from memprof.views.examination import examine


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
    return unseen(examine(Run("", header, (device,), windows=ended)))


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
