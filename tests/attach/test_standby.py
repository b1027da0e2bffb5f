"""A process that stands by is asked over its socket: what it records, and that it goes on as before."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="there is nothing to record without torch")

import memprof
from memprof import load
from memprof.attach.client import ask
from memprof.attach.processes import read_process
from memprof.attach.recordings import begin, end, status
from memprof.errors import MemprofError, MissingError
from memprof.record.tracker import active
from memprof.trace import Category
from tests.attach.jobs import BY_HAND, ENVIRONMENT, TRAINING, Job, changes, until

STANDBY = f"import memprof; memprof.start(standby=True)\n{TRAINING}"
ASLEEP = """
import memprof, os, sys, time, torch
from memprof.record.tracker import active
memprof.start(standby=True)
os.mkfifo(sys.argv[1])
print("ready", flush=True)
with open(sys.argv[1]) as pipe:
    pipe.read()
for _ in range(50):
    time.sleep(0.01)
print(active())
"""
"""Its main thread is in a call of C until it is released."""
ENDING = """
import memprof, torch
memprof.start(standby=True)
print("ready", flush=True)
exec(
    "import time\\nfor _ in range(150): time.sleep(0.01)\\n"
    "from memprof.record.standby import standing_by; standing_by().close(); raise SystemExit",
    {"__name__": "torch.fx.pretended"},
)
"""
"""torch is tracing, as far as can be seen, until the program ends."""


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    with Job(tmp_path_factory.mktemp("job"), script=STANDBY) as one:
        yield one


def steps(path: Path) -> int:
    """How many steps a file has so far."""
    cpu = load(path).device("cpu")
    return int(cpu.steps.last.max()) + 1 if cpu is not None and len(cpu.steps) else 0


def recorded(job: Job, path: Path, **request: object) -> Path:
    """A recording of some steps of a job."""
    assert begin(job.pid, {"path": str(path), **request}) == str(path)
    until(lambda: steps(path) >= 5, "five steps", 120)
    assert end(job.pid) == str(path)
    return path


def test_what_exists_already_is_found_and_owned_to_the_byte(job, tmp_path):
    """Also a model that is not called, and an optimizer that does not step, while it is recorded."""
    run = load(recorded(job, tmp_path / "run.json"))
    parameters = (64 * 128 + 128) + 2 * 128 + (128 * 16 + 16) + (64 * 25 + 25)
    state = 2 * (parameters - (64 * 25 + 25)) + (64 * 25 + 25) + 6  # and a count for each of AdamW
    blocks = run.device("cpu").windows[0].start.blocks
    found = {
        category: int(blocks.requested[blocks.category == category].sum())
        for category in (Category.PARAMETER, Category.BUFFER, Category.OPTIMIZER_STATE)
    }
    assert found[Category.PARAMETER] == 4 * parameters
    assert found[Category.BUFFER] == 4 * 2 * 128 + 8
    assert found[Category.OPTIMIZER_STATE] == 4 * state


def test_steps_of_a_loop_that_runs_already_are_counted(job, tmp_path):
    run = load(recorded(job, tmp_path / "run.json"))
    assert run.footer.status == "ok"
    assert run.footer.steps >= 5
    assert any(note.source == "attach" for note in run.notes)


@pytest.mark.slow
def test_the_job_computes_the_same_to_the_bit_and_nothing_is_left(tmp_path):
    with Job(tmp_path, script=STANDBY) as one:
        for n in range(8):
            recorded_path = str(tmp_path / f"run{n % 3}.json")
            begin(one.pid, {"path": recorded_path, "allowance_s": 0.2})
            time.sleep(0.05)
            end(one.pid)
        told = one.end()
    assert changes(told) == {}
    recorders = {"Tracker", "Session", "Recording", "Interner", "LoopWatch", "CpuSource", "Output"}
    assert not recorders & set(told["ours"])
    with Job(tmp_path, script=STANDBY, steps=len(told["losses"])) as other:
        assert other.end()["losses"] == told["losses"]


def test_a_duration_ends_by_itself(job, tmp_path):
    path = tmp_path / "run.json"
    begin(job.pid, {"path": str(path), "duration_s": 1.0})
    assert status(read_process(job.pid)) == str(path)
    until(lambda: status(read_process(job.pid)) == "standby", "its end")
    assert load(path).footer.status == "ok"
    with pytest.raises(MemprofError, match="is not recorded"):
        end(job.pid)


def test_a_process_that_is_recorded_is_not_recorded_twice(job, tmp_path):
    begin(job.pid, {"path": str(tmp_path / "run.json")})
    try:
        with pytest.raises(MemprofError, match=r"recorded already, into .*run\.json") as refused:
            begin(job.pid, {"path": str(tmp_path / "other.json")})
        assert f"memprof detach {job.pid}" in refused.value.hint
    finally:
        end(job.pid)
    assert not (tmp_path / "other.json").exists()


def test_what_the_process_cannot_do_is_said_here(job, tmp_path):
    with pytest.raises(MemprofError, match="nowhere"):
        begin(job.pid, {"path": "/proc/nowhere/run.json"})
    with pytest.raises(MemprofError, match="budget is 2"):
        begin(job.pid, {"path": str(tmp_path / "run.json"), "budget": 2})
    with pytest.raises(MemprofError, match="knows no request 'dance'"):
        ask(read_process(job.pid), {"request": "dance"}, 5)
    assert status(read_process(job.pid)) == "standby"


def test_a_recording_of_the_program_s_own_is_left_alone(tmp_path):
    own = "import memprof; memprof.start(standby=True)\nmemprof.start('own.json')\n" + BY_HAND
    with Job(tmp_path, script=own) as one:
        with pytest.raises(MemprofError, match=r"recorded already, into .*own\.json"):
            begin(one.pid, {"path": str(tmp_path / "run.json")})
        with pytest.raises(MemprofError, match="the program itself began"):
            end(one.pid)


def test_a_request_that_cannot_be_met_in_time_is_withdrawn_for_good(tmp_path):
    with Job(tmp_path, script=ASLEEP) as one:
        with pytest.raises(MemprofError, match=r"no Python for 0\.5 s: it is in <module>"):
            begin(one.pid, {"path": str(tmp_path / "run.json")}, timeout_s=0.5)
        assert one.release() == "None\n"
    assert not (tmp_path / "run.json").exists()


def test_a_program_that_ends_waits_for_no_request(tmp_path):
    with Job(tmp_path, script=ENDING) as one:
        with pytest.raises(MemprofError, match="the program is ending"):
            begin(one.pid, {"path": str(tmp_path / "run.json")}, timeout_s=300)
        until(lambda: not one.runs, "its end")
    assert not (tmp_path / "run.json").exists()


def test_a_job_that_is_killed_leaves_what_was_recorded(tmp_path):
    path = tmp_path / "run.json"
    with Job(tmp_path, script=STANDBY) as one:
        begin(one.pid, {"path": str(path)})
        until(lambda: steps(path) >= 3, "three steps", 120)
        one.send(signal.SIGKILL)
        until(lambda: not one.runs, "its end")
        with pytest.raises(MemprofError):
            end(one.pid)
    assert steps(path) >= 3


def test_the_variable_makes_every_process_of_torch_stand_by(tmp_path):
    site = tmp_path / "site"
    site.mkdir()
    hook = Path(__file__).parents[2] / "memprof" / "record" / "startup.pth"
    (site / "sitecustomize.py").write_text(hook.read_text())
    environment = {
        **ENVIRONMENT,
        "PYTHONPATH": f"{site}:{ENVIRONMENT['PYTHONPATH']}",
        "MEMPROF": "standby",
        "MEMPROF_BUDGET": "0.5",
    }
    with Job(tmp_path, environment=environment) as one:
        assert status(read_process(one.pid)) == "standby"
        path = recorded(one, tmp_path / "run.json")
        assert load(path).header.options["budget"] == 0.5
        assert status(read_process(one.pid)) == "standby"
    assert sorted(p.name for p in tmp_path.glob("*.json")) == ["run.json"]


# -- in this process ---------------------------------------------------------------------------------


@pytest.fixture
def private(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "memprof" / f"{os.getpid()}.sock"


def test_a_block_that_stands_by_records_nothing_and_has_a_socket_as_long_as_it_lasts(private):
    with memprof.track("never.json", standby=True) as tracker:
        assert private.exists()
        memprof.step()
        assert active() is None
        assert tracker.path == ""
    assert not private.exists()
    assert not Path("never.json").exists()


def test_a_function_that_stands_by_has_a_socket_at_each_call(private):
    @memprof.track("never.json", standby=True)
    def train():
        return private.exists()

    assert [train(), private.exists(), train()] == [True, False, True]


def test_a_process_stands_by_once(private):
    with memprof.track(standby=True), pytest.raises(MissingError, match="stands by already"):
        memprof.start(standby=True)
    assert not private.exists()


def test_the_options_of_the_program_hold_where_a_request_names_none(private, tmp_path):
    """And the path. The request is answered while this thread goes on."""
    path = tmp_path / "own.json"
    with memprof.track(path, standby=True, budget=0.25, window_steps=7):
        answers: list = []
        process = read_process(os.getpid())
        vars(process)["environment"] = {"XDG_RUNTIME_DIR": str(tmp_path)}
        request = {"request": "start", "window_steps": 3}
        thread = threading.Thread(target=lambda: answers.append(ask(process, request, 60)))
        thread.start()
        until(lambda: answers, "the answer")
        thread.join()
        assert active() is not None
    assert active() is None
    assert answers == [{"path": str(path)}]
    options = load(path).header.options
    assert (options["budget"], options["window_steps"]) == (0.25, 3)
