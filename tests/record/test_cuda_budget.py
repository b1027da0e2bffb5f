"""What recording a CUDA job costs on a stand-in whose looks take long, by a clock that it turns."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="a recording needs torch")

import memprof
from memprof.loading import load
from memprof.sources.cuda.snapshot_source import CudaSource
from memprof.testing.cuda import TorchStandIn
from tests.clocks import set_clock

SECOND = 1_000_000.0


@pytest.fixture(autouse=True)
def time_is_no_limit() -> None:
    """Leave the limits of time as they are: these tests are of them, by a clock of their own."""


class SlowJob:
    """A job with a heap of many blocks, in which every look and every recorded event takes time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, blocks: int, row_us: float) -> None:
        self.now_us = 1e15
        self.torch = TorchStandIn(capacity=1 << 34)
        self.row_us, self.event_us = row_us, 3.0
        self.cost_us = self.longest_us = 0.0
        self._events = 0
        set_clock(
            monkeypatch,
            lambda: self.now_us,
            "record.session",
            "record.recording",
            "record.summaries",
            "sources.cuda.snapshot_source",
        )
        for name in ("session", "summaries"):
            monkeypatch.setattr(f"memprof.record.{name}.now_us", lambda: int(self.now_us))
        turned = SimpleNamespace(**vars(time))
        turned.thread_time = lambda: self.now_us / SECOND
        for name in ("survivors", "bounded_search", "pause_estimate"):
            monkeypatch.setattr(f"memprof.referrers.{name}.time", turned)
        monkeypatch.setattr(
            "memprof.record.session.event_sources",
            lambda _, interner, loop_watch, __: [CudaSource(interner, loop_watch, self.torch)],
        )
        self.torch.cuda.memory._snapshot = self._slow(self.torch.cuda.memory._snapshot)
        self.torch.cuda.memory_snapshot = self._slow(self.torch.cuda.memory_snapshot)
        for _ in range(blocks):
            self.torch.alloc(512)

    def _slow(self, look):
        def slow(include_traces=True):
            found = look()
            segments = found["segments"] if isinstance(found, dict) else found
            rows = sum(len(segment["blocks"]) for segment in segments)
            if isinstance(found, dict):
                rows += sum(map(len, found["device_traces"]))
            self.now_us += rows * self.row_us
            return found

        slow.__signature__ = __import__("inspect").signature(slow)
        return slow

    def step(self, took_us: float, tensors: int) -> None:
        """One step of the job, and what memprof does at its end."""
        is_recorded = self.torch.recording is not None
        for _ in range(tensors):
            self.torch.free(self.torch.alloc(4096))
        extra_us = 3 * tensors * self.event_us if is_recorded else 0.0
        self.now_us += took_us + extra_us
        began_us = self.now_us
        memprof.step()
        stalled_us = self.now_us - began_us
        self.cost_us += stalled_us + extra_us
        self.longest_us = max(self.longest_us, stalled_us)


@pytest.mark.parametrize(("blocks", "row_us"), [(300, 12.0), (300, 200.0), (800, 100.0)])
def test_slow_looks_keep_to_the_budget_and_never_hold_the_job_up(
    monkeypatch, tmp_path, blocks, row_us
):
    job = SlowJob(monkeypatch, blocks=blocks, row_us=row_us)
    with memprof.track(tmp_path / "run.json", sources=("cuda",), allowance_s=2.0):
        began_us = job.now_us
        for _ in range(1000):
            job.step(0.4 * SECOND, tensors=20)
        elapsed_us = job.now_us - began_us
    assert job.longest_us <= 0.5 * SECOND
    # A window is paid for when it is over: the last one may be beyond by what its end takes.
    assert job.cost_us <= max(2.0 * SECOND, 0.01 * elapsed_us) + 0.5 * SECOND
    run = load(tmp_path / "run.json")
    assert run.footer.overhead_us >= 0.5 * job.cost_us
    assert len(run.devices[0].windows) >= 1
    assert run.devices[0].steps.allocated[-1] == blocks * 512


def test_a_heap_that_takes_too_long_is_left_to_the_counters_and_said(monkeypatch, tmp_path):
    job = SlowJob(monkeypatch, blocks=500, row_us=12.0)
    monkeypatch.setattr("memprof.sources.cuda.memory_history.ROW_US", 1000.0)
    with memprof.track(tmp_path / "run.json", sources=("cuda",)):
        for _ in range(50):
            job.step(0.1 * SECOND, tensors=5)
    run = load(tmp_path / "run.json")
    assert job.cost_us == 0
    assert run.devices[0].windows == ()
    assert run.devices[0].steps.allocated[-1] == 500 * 512
    assert "500 blocks are in use" in " ".join(note.message for note in run.notes)


def test_a_window_with_a_gap_is_followed_by_another(monkeypatch, tmp_path):
    job = SlowJob(monkeypatch, blocks=10, row_us=1.0)
    with memprof.track(tmp_path / "run.json", sources=("cuda",)):
        job.torch.cuda.memory._record_memory_history("all", max_entries=40)
        for number in range(6):
            tensors = 100 if number == 2 else 5
            job.step(0.2 * SECOND, tensors)
        job.torch.cuda.memory._record_memory_history(None)
    run = load(tmp_path / "run.json")
    assert "overflowed" in " ".join(note.message for note in run.notes)
    first, second = run.devices[0].windows
    assert min(len(first.events), len(second.events)) > 0
    assert [state.allocated for state in (first.end, second.end) if state] == [5120, 5120]
