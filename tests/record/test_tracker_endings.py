"""How a recording ends: full disks, sources that fail, exceptions, kills, forks."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

import memprof

torch = pytest.importorskip("torch", reason="there is nothing to record without torch")

from tests import forks  # noqa: E402
from tests.tracked import FakeEvents, FakeReadings, flat, kinds, notes, of_kind, python  # noqa: E402


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "run.json"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_ends_recording_and_not_the_job(tmp_path, caplog):
    full = tmp_path / "run.json"
    full.symlink_to("/dev/full")
    source = FakeEvents()
    with memprof.track(full, sources=[source], sample_interval_s=100) as tracker:
        for _ in range(3):
            source.happen(10)
            tracker.step()
            time.sleep(0.11)
    assert "recording has ended, the job goes on" in caplog.text
    assert caplog.text.count("recording has ended") == 1
    assert source.calls[-1] == "close"


def test_each_rank_writes_its_own_file(path, monkeypatch):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with memprof.track(path, sources=[]) as tracker:
        assert tracker.path == str(path.with_name("run.rank2.json"))
    assert of_kind(path.with_name("run.rank2.json"), "header")[0]["world_size"] == 4


# Things that go wrong.


@pytest.mark.parametrize(
    "call", ["open", "counters", "begin_window", "drain", "end_window", "close"]
)
def test_a_source_that_fails_is_closed_with_a_note_and_the_others_go_on(path, caplog, call):
    broken, sound = FakeEvents(fails=[call]), FakeEvents()
    with memprof.track(path, sources=[broken, sound]) as tracker:
        for _ in range(3):
            sound.happen(2)
            tracker.step()
    assert f"{call} is broken" in notes(path)
    assert broken.calls.count("close") <= 2
    assert broken.calls[-1] == "close"
    assert sum(len(c["size"]) for c in of_kind(path, "trace")) == 6
    assert caplog.text.count("failed and was closed") == 1


def test_a_reading_source_that_fails_is_left_out_with_a_note(path, caplog):
    broken, sound = FakeReadings(fails_at=2), FakeReadings()
    with memprof.track(path, sources=[broken, sound], sample_interval_s=0.01):
        while sound.looks <= 5:
            time.sleep(0.01)
    assert "the wire is cut" in notes(path)
    assert sum(len(r["time_us"]) for r in of_kind(path, "readings")) > 5


def test_an_exception_of_the_block_passes_untouched_and_stands_in_the_footer(path):
    error = ValueError("mine")
    with pytest.raises(ValueError, match="mine") as raised, memprof.track(path, sources=[]):
        raise error
    assert raised.value is error
    assert of_kind(path, "footer")[0]["status"] == "ValueError: mine"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (SystemExit(0), "ok"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_the_ways_a_program_ends_stand_in_the_footer(path, error, status):
    with pytest.raises(type(error)), memprof.track(path, sources=[]):
        raise error
    assert of_kind(path, "footer")[0].get("status", "ok") == status


def test_a_note_says_that_torch_was_never_imported(path):
    done = python("import sys, memprof\nwith memprof.track(sys.argv[1]): pass", path)
    assert done.returncode == 0, done.stderr
    assert "torch was never imported" in notes(path)
    assert of_kind(path, "readings")


def test_torch_imported_inside_the_block_is_recorded(path):
    code = """
import sys, memprof
with memprof.track(sys.argv[1], sources=["cpu"]) as tracker:
    import torch
    kept = torch.ones(1000)
    tracker.step()
assert not any(type(f).__module__.startswith("memprof") for f in sys.meta_path)
assert type(torch.__spec__.loader).__module__ == "_frozen_importlib_external", torch.__spec__
"""
    done = python(code, path)
    assert done.returncode == 0, done.stderr
    assert 4000 in flat(c["size"] for c in of_kind(path, "trace"))


def test_a_program_that_never_stops_its_recording_gets_a_footer_at_its_end(path):
    done = forks.run("import sys, torch, memprof\nmemprof.start(sys.argv[1])", path)
    assert done.returncode == 0, done.stderr
    assert kinds(path)[-1] == "footer"


def test_a_program_that_leaves_by_os_exit_leaves_a_readable_file(path):
    code = """
import os, sys, torch, memprof
memprof.start(sys.argv[1], sources=["cpu"])
kept = torch.ones(1000)
memprof.step()
memprof.active = None
import time; time.sleep(0.12); memprof.step()
os._exit(7)
"""
    assert forks.run(code, path).returncode == 7
    run = memprof.load(path)
    assert run.footer is None
    assert run.devices[0].device == "cpu"


def test_a_terminated_program_dies_as_it_would_without_us(path):
    code = """
import os, signal, sys, torch, memprof
memprof.start(sys.argv[1])
os.kill(os.getpid(), signal.SIGTERM)
"""
    assert forks.run(code, path).returncode == -signal.SIGTERM


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_neither_records_nor_writes_to_the_file(path):
    code = """
import os, sys, torch, memprof
from memprof.record.tracker import active
with memprof.track(sys.argv[1], sources=["cpu"]) as tracker:
    kept = torch.ones(10)
    tracker.step()
    pid = os.fork()
    if pid == 0:
        assert active() is None
        assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()
        lost = torch.ones(77)
        memprof.step()
        tracker.stop()
        sys.exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
    tracker.step()
"""
    done = forks.run(code, path)
    assert done.returncode == 0, done.stderr
    assert of_kind(path, "footer")[0]["steps"] == 2
    assert len(of_kind(path, "footer")) == 1
    assert 308 not in flat(c["size"] for c in of_kind(path, "trace"))


def test_steps_may_end_on_any_thread(path):
    source = FakeEvents()
    with memprof.track(path, sources=[source]) as tracker:

        def work():
            for _ in range(50):
                tracker.step()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert of_kind(path, "footer")[0]["steps"] == 200
