"""What memprof leaves alone where the program has torch record for it, on a stand-in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("torch", reason="the labels of CUDA events come from torch's hooks")

from memprof.sources.cuda.source_with_owners import OwnedCudaSource
from memprof.sources.loop.loop_watch import LoopWatch
from memprof.sources.protocol import Interner
from memprof.testing.cuda import StandInOutOfMemoryError, TorchStandIn
from memprof.trace import Action
from tests.clocks import set_clock

MIB = 1 << 20
OLD, NEW = ["2.4", "2.8", "2.10"], ["2.11", "2.13", "2.15"]
LONG = 1_000


class Job:
    """A source on a stand-in, and what it said."""

    def __init__(self, version: str) -> None:
        self.torch = TorchStandIn(version)
        self.torch.alloc(MIB)
        interner = Interner()
        self.loop_watch = LoopWatch(interner)
        self.loop_watch.open(lambda step: None)
        self.source = OwnedCudaSource(interner, self.loop_watch, self.torch)
        self.ooms: list = []
        self.source.on_oom = self.ooms.append
        self.source.open()
        self.source.counters()

    def record(self, *args, **kwargs) -> None:
        self.torch.cuda.memory._record_memory_history(*args, **kwargs)

    def long_history(self) -> None:
        """The program records itself, and much happens."""
        self.record("all")
        for _ in range(LONG):
            self.torch.free(self.torch.alloc(4096))

    @property
    def looks(self) -> int:
        return self.torch.calls["snapshot"] + self.torch.calls["memory_snapshot"]

    def said(self) -> str:
        return " ".join(self.source.notes())


@pytest.fixture
def started() -> Iterator:
    made: list[Job] = []

    def start(version: str) -> Job:
        made.append(Job(version))
        return made[-1]

    yield start
    for job in made:
        job.source.close()
        job.loop_watch.close()


@pytest.fixture
def dear_entries(monkeypatch):
    """A program's entry is thought to take twenty times what it does: fewer are too many."""
    monkeypatch.setattr("memprof.sources.cuda.memory_history.THEIR_ROW_US", 600.0)


def made_in(job: Job) -> list[int]:
    chunks = job.source.drain()
    return [s for c in chunks for s in c.events.size[c.events.action == Action.ALLOC].tolist()]


# -- a history that is too long to be read -----------------------------------------------------


@pytest.mark.usefixtures("dear_entries")
@pytest.mark.parametrize("version", OLD)
def test_a_long_history_is_not_brought_along_with_the_blocks(version, started):
    job = started(version)
    job.long_history()
    assert len(job.source.living("cuda:0")) == 0
    assert job.looks == 0
    assert "too long to be read without holding the job up" in job.said()


@pytest.mark.usefixtures("dear_entries")
@pytest.mark.parametrize("version", NEW)
def test_where_torch_leaves_the_history_out_the_blocks_are_seen(version, started):
    job = started(version)
    job.long_history()
    assert job.source.living("cuda:0").size.tolist() == [MIB]
    assert job.said() == ""


@pytest.mark.parametrize("version", [*OLD, *NEW])
def test_beside_a_short_history_the_blocks_are_seen_in_every_version(version, started):
    job = started(version)
    job.record("all", max_entries=500)
    kept = job.torch.alloc(2 * MIB)
    living = job.source.living("cuda:0")
    assert dict(zip(living.address.tolist(), living.size.tolist(), strict=True))[kept] == 2 * MIB


@pytest.mark.usefixtures("dear_entries")
@pytest.mark.parametrize("version", [*OLD, *NEW])
def test_a_failure_beside_a_long_history_is_told_by_the_counters(version, started):
    job = started(version)
    job.long_history()
    with pytest.raises(StandInOutOfMemoryError):
        job.torch.alloc(1 << 40)
    (what,) = job.ooms
    assert what.facts["allocated"] == MIB
    if version in OLD:
        assert job.looks == 0
        assert what.trace is None
        assert "too long to look at the blocks" in str(what.facts["unread"])
    else:
        assert what.trace is not None
        assert "unread" not in what.facts


@pytest.mark.parametrize("version", OLD)
def test_a_failure_in_our_own_window_is_told_with_its_blocks(version, started):
    job = started(version)
    job.source.begin_window()
    with pytest.raises(StandInOutOfMemoryError):
        job.torch.alloc(1 << 40)
    assert job.ooms[0].held is not None


def test_a_look_that_took_long_is_not_repeated(started, monkeypatch):
    now_us = [0.0]
    set_clock(monkeypatch, lambda: now_us[0], "sources.cuda.snapshot_source")
    job = started("2.8")
    job.record("all")
    for _ in range(1000):
        job.torch.free(job.torch.alloc(4096))
    real = job.torch.cuda.memory_snapshot

    def slow():
        now_us[0] += 900_000.0
        return real()

    job.torch.cuda.memory_snapshot = slow
    assert job.source.living("cuda:0").size.tolist() == [MIB]
    assert "held the job up for" in job.said()
    assert len(job.source.living("cuda:0")) == 0
    assert job.looks == 1


# -- pinned host memory ------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["2.14", "2.15"])
def test_a_recording_of_pinned_memory_is_neither_stopped_nor_cleared(version, started):
    job = started(version)
    job.record("all", record_pinned_host_memory=True, record_cuda=False)
    job.torch.pin(4096)
    for _ in range(2):
        assert job.source.begin_window() == {}
        job.torch.pin(8192)
        job.source.drain()
        job.source.end_window()
    job.source.close()
    assert job.torch.calls["record_memory_history"] == 1
    pinned = job.torch.cuda.memory._snapshot()["host_traces"]
    assert [one["size"] for one in pinned] == [4096, 8192, 8192]
    assert "the program records its pinned host memory" in job.said()


@pytest.mark.parametrize("version", ["2.14", "2.15"])
def test_a_recording_of_pinned_memory_alone_that_starts_in_a_window_ends_ours(version, started):
    job = started(version)
    job.source.begin_window()
    job.torch.alloc(2 * MIB)
    job.record("all", record_pinned_host_memory=True, record_cuda=False)
    assert made_in(job) == [2 * MIB]
    assert job.source.is_over()
    job.source.end_window()
    job.torch.pin(4096)
    job.source.close()
    assert [one["size"] for one in job.torch.pinned] == [4096]


def test_a_recording_of_both_is_shared(started):
    job = started("2.15")
    job.record("all", max_entries=1000, record_pinned_host_memory=True)
    job.torch.pin(4096)
    job.source.begin_window()
    job.torch.alloc(2 * MIB)
    assert made_in(job) == [2 * MIB]
    job.source.end_window()
    job.source.close()
    assert job.torch._C._cuda_isHistoryEnabled()
    assert len(job.torch.pinned) == 1


@pytest.mark.parametrize("version", ["2.4", "2.13"])
def test_versions_that_cannot_record_pinned_memory_are_not_asked(version, started):
    job = started(version)
    job.source.begin_window()
    assert job.torch.calls["snapshot"] == 0
