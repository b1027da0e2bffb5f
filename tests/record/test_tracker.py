"""track() around real and fake sources: what lands in the file, and who is asked for what."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

import memprof
from memprof.record.session import Session
from memprof.record.tracker import active
from memprof.record.window_schedule import WindowSchedule
from memprof.records import Finding
from memprof.sources.protocol import LateOwner

torch = pytest.importorskip("torch", reason="there is nothing to record without torch")

from tests.tracked import FakeEvents, flat, kinds, notes, of_kind  # noqa: E402


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "run.json"


# What is written.


def test_a_run_is_valid_json_from_header_to_footer(path):
    source = FakeEvents()
    with memprof.track(path, sources=[source]) as tracker:
        source.happen(3)
        tracker.step()
    assert kinds(path)[0] == "header"
    assert kinds(path)[-1] == "footer"
    assert of_kind(path, "trace")[0]["size"] == [100, 100, 100]
    assert [s["at"] for s in of_kind(path, "state")] == ["start", "end"]


def test_every_step_makes_a_row_with_the_counters_at_its_end(path):
    source = FakeEvents()
    with memprof.track(path, sources=[source]) as tracker:
        for allocated in (1000, 3000, 2000):
            source.allocated = allocated
            tracker.step()
    rows = [record["steps"] for record in of_kind(path, "steps")]
    assert flat(row["allocated"] for row in rows) == [1000, 3000, 2000]
    assert flat(row["first"] for row in rows) == [0, 1, 2]
    assert flat(row["window"] for row in rows) == [0, 0, 0]
    assert flat(row["reserved"] for row in rows) == [4000] * 3


def test_between_windows_an_optimizer_that_begins_to_step_asks_nothing(path, monkeypatch):
    asked = []
    tick = Session.pass_time
    monkeypatch.setattr(Session, "pass_time", lambda self, action: asked.append(tick(self, action)))
    schedules = []
    begin = WindowSchedule.__init__

    def noted(self, policy, now_us):
        begin(self, policy, now_us)
        schedules.append(self)

    monkeypatch.setattr(WindowSchedule, "__init__", noted)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1)
    source = FakeEvents()
    with memprof.track(path, sources=[source]):
        optimizer.step()
        assert len(asked) == 2  # the limits, and whether a window waits for training
        schedules[0].events.take(10**9)  # no window may be open any more
        optimizer.step()
        asked.clear()
        for _ in range(20):
            optimizer.step()
    assert not asked


def test_chunks_of_a_window_follow_one_another_without_a_gap(path, monkeypatch):
    monkeypatch.setattr("memprof.record.session.FLUSH_IN_WINDOW_US", 0)
    source = FakeEvents()
    with memprof.track(path, sources=[source]) as tracker:
        for count in (5, 0, 2, 7):
            source.happen(count)
            tracker.step()
        source.happen(1)
    chunks = [(c["first_event"], len(c["size"])) for c in of_kind(path, "trace")]
    assert sum(length for _, length in chunks) == 15
    assert [first for first, _ in chunks] == [
        sum(n for _, n in chunks[:i]) for i in range(len(chunks))
    ]
    assert of_kind(path, "footer")[0]["devices"][0]["events"] == 15


def test_categories_that_became_known_late_are_written_after_their_events(path):
    source = FakeEvents()
    with memprof.track(path, sources=[source]) as tracker:
        source.happen(2)
        source.late = {1: LateOwner(5, 0)}
        tracker.step()
    (owners,) = of_kind(path, "owners")
    assert (owners["events"], owners["categories"], owners["labels"]) == ([1], [5], [0])
    assert kinds(path).index("owners") > kinds(path).index("trace")


def test_the_footer_sums_up_each_device(path):
    source = FakeEvents()
    with memprof.track(path, sources=[source]) as tracker:
        for allocated in (1000, 9000, 2000):
            source.allocated = allocated
            tracker.step()
    (footer,) = of_kind(path, "footer")
    (device,) = footer["devices"]
    assert footer["steps"] == 3
    assert footer["overhead_us"] > 0
    assert device["peak_allocated_bytes"] == 9500
    assert device["peak_step"] == 1
    assert device["allocated_bytes"] == 2000


def test_the_header_says_what_ran(path):
    with memprof.track(path, sources=["cpu"], budget=0.02):
        pass
    header = of_kind(path, "header")[-1]
    assert header["pid"] == os.getpid()
    assert header["argv"] == sys.argv
    assert header["torch_version"].startswith(sys.modules["torch"].__version__)
    assert header["options"]["budget"] == 0.02
    assert [d["device"] for d in header["devices"]] == ["cpu"]


def test_a_finding_is_written_and_told(path, caplog):
    told = []
    with memprof.track(path, sources=[], on_finding=told.append) as tracker:
        tracker.add_finding(Finding("holders", device="cpu", step=3, bytes=7))
    assert of_kind(path, "finding")[0]["bytes"] == 7
    assert [f.step for f in told] == [3]


def test_an_on_finding_that_raises_does_not_reach_the_job(path, caplog):
    def broken(finding):
        raise ValueError("not mine")

    with memprof.track(path, sources=[], on_finding=broken) as tracker:
        tracker.add_finding(Finding("holders"))
    assert "on_finding raised" in caplog.text


# Faces.


def test_a_decorated_function_is_recorded_and_returns_what_it_returns(path):
    @memprof.track(path, sources=[])
    def double(x, *, plus=0):
        assert active() is not None
        return 2 * x + plus

    assert double(4, plus=1) == 9
    assert double.__name__ == "double"
    assert kinds(path) == ["header", "header", "window", "footer"]


def test_a_decorated_coroutine_is_recorded_while_it_runs(path):
    @memprof.track(path, sources=[])
    async def later():
        await asyncio.sleep(0)
        return active() is not None

    assert asyncio.run(later()) is True
    assert active() is None


def test_start_and_stop_do_the_same_as_a_block(path):
    tracker = memprof.start(path, sources=[])
    assert active() is tracker
    memprof.stop()
    memprof.stop()
    assert active() is None
    assert kinds(path)[-1] == "footer"


def test_steps_marks_a_step_for_each_item(path):
    with memprof.track(path, sources=["cpu"]):
        assert list(memprof.steps(range(4))) == [0, 1, 2, 3]
    assert of_kind(path, "footer")[0]["steps"] == 4


def test_steps_without_a_tracker_are_just_the_items():
    batches = memprof.steps([1, 2, 3])
    assert len(batches) == 3
    assert list(batches) == [1, 2, 3]
    memprof.step()


def test_a_second_tracker_records_nothing_and_passes_steps_on(path, caplog):
    source = FakeEvents()
    with memprof.track(path, sources=[source]) as outer:
        with memprof.track(path.with_name("inner.json")) as inner:
            inner.step()
        assert active() is outer
    assert not path.with_name("inner.json").exists()
    assert of_kind(path, "footer")[0]["steps"] == 1
    assert "inner.json" in notes(path)
    assert "already recording" in caplog.text


@pytest.mark.parametrize(
    "option",
    [
        {"budget": -1},
        {"budget": 2},
        {"sample_interval_s": 0},
        {"window_steps": 0},
        {"max_events": -1},
        {"allowance_s": -1},
        {"sources": ["gpu"]},
    ],
    ids=str,
)
def test_an_option_out_of_range_is_refused_by_name(option):
    with pytest.raises(memprof.SettingsError, match=next(iter(option)).rstrip("s")):
        memprof.track("run.json", **option)


# Files.


def test_an_existing_file_is_replaced_at_the_start_and_folders_are_made(tmp_path):
    path = tmp_path / "a" / "b" / "run.json"
    tracker = memprof.track(path, sources=[])
    assert not path.parent.exists()
    path.parent.mkdir(parents=True)
    path.write_text("old")
    with tracker:
        assert path.read_text().startswith("[")


def test_a_path_that_cannot_be_written_is_a_clear_error_at_the_start(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(memprof.MemprofError, match="cannot write"),
        memprof.track(tmp_path / "file" / "run.json", sources=[]),
    ):
        pytest.fail("the block must not begin")
    assert active() is None
