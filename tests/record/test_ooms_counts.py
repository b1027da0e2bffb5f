"""torch counts failures for the whole life of the process; each one in a recording is told once."""

from __future__ import annotations

from contextlib import suppress

import pytest

pytest.importorskip("torch", reason="a recording needs torch")

import memprof
from memprof.loading import load
from memprof.sources.cuda.snapshot_source import CudaSource
from memprof.testing.cuda import StandInOutOfMemoryError, TorchStandIn

MIB = 1 << 20


@pytest.fixture
def told(monkeypatch, tmp_path):
    """Records a function of a stand-in; the step and the origin of each failure in the file."""

    def record(stand_in: TorchStandIn, job) -> list[tuple[int, str]]:
        monkeypatch.setattr(
            "memprof.record.session.event_sources",
            lambda _, interner, loop_watch, __: [CudaSource(interner, loop_watch, stand_in)],
        )
        with memprof.track(tmp_path / "run.json", sources=("cuda",), allowance_s=60):
            job()
        found = [one for one in load(tmp_path / "run.json").findings if one.finding == "oom"]
        return [(one.step, str(one.details.get("from", "observer"))) for one in found]

    return record


def fail(stand_in: TorchStandIn, times: int = 1) -> None:
    for _ in range(times):
        with suppress(StandInOutOfMemoryError):
            stand_in.alloc(1 << 40)


@pytest.mark.parametrize("before", [0, 1, 5])
def test_failures_before_the_recording_make_none_in_it_twice(told, before):
    stand_in = TorchStandIn()
    stand_in.alloc(MIB)
    fail(stand_in, before)

    def job():
        fail(stand_in)
        memprof.step()
        memprof.step()
        fail(stand_in, 2)
        memprof.step()

    assert told(stand_in, job) == [(0, "observer"), (2, "observer"), (2, "observer")]


def test_a_failure_that_only_the_counter_tells_of_is_told_after_older_ones_too(told):
    stand_in = TorchStandIn()
    stand_in.alloc(MIB)
    fail(stand_in, 3)

    def job():
        fail(stand_in)
        memprof.step()
        observers, stand_in.observers = stand_in.observers, []
        fail(stand_in)
        stand_in.observers = observers
        memprof.step()

    assert told(stand_in, job) == [(0, "observer"), (1, "counter")]
