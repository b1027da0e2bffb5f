"""Ways into a process that knows nothing of memprof: gdb's, Python's own, and back out of both."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="there is nothing to record without torch")

from memprof import load
from memprof.attach import debugger, enter, remote_exec
from memprof.attach.checks import check_may_trace, lent_packages
from memprof.attach.debugger import PAGE_BYTES, free_page, inject
from memprof.attach.processes import Process, read_process
from memprof.attach.recordings import begin, end, status
from memprof.attach.remote_exec import OLDEST
from memprof.errors import MemprofError, MissingError
from memprof.version import __version__
from tests.attach.jobs import BY_HAND, FOREIGN, TRAINING, Job, changes, until

BUSY = """
import os, sys, threading, time
import torch
os.mkfifo(sys.argv[1])
print("ready", flush=True)
with open(sys.argv[1]) as pipe:
    pipe.read()
for _ in range(200):
    time.sleep(0.01)
print(sorted(name for name in sys.modules if name.startswith("memprof")), threading.active_count())
"""
"""In a call of C until it is released, and then in Python."""


@pytest.fixture
def gdb():
    """A real gdb that may trace: in some containers none may."""
    if shutil.which("gdb") is None:
        pytest.skip("needs gdb on PATH (Debian: apt install gdb)")
    with subprocess.Popen(["sleep", "600"]) as sleeper:
        try:
            words = ["gdb", "-nx", "-q", "-batch", "-p", str(sleeper.pid)]
            done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        finally:
            sleeper.kill()
    if "ptrace" in done.stdout + done.stderr:
        pytest.skip("gdb may not trace here (docker run --cap-add SYS_PTRACE)")
    try:
        debugger.rehearse(debugger.locate_debugger())
    except MissingError as error:  # gdb 13.1 on a processor with AMX
        pytest.skip(error.message)


def is_mapped(pid: int, address: int) -> bool:
    """Whether anything lies at an address of a process."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    stretches = [[int(n, 16) for n in line.split()[0].split("-")] for line in lines]
    return any(start <= address < stop for start, stop in stretches)


@pytest.mark.slow
def test_a_process_that_never_heard_of_memprof_is_recorded_and_left_as_it_was(
    gdb, tmp_path, monkeypatch
):
    path, pages = tmp_path / "run.json", []
    monkeypatch.setattr(enter, "free_page", lambda p: pages.append(free_page(p)) or pages[-1])
    with Job(tmp_path, "-S", environment=FOREIGN) as one:
        if sys.version_info < OLDEST:
            with pytest.raises(MissingError, match="has no door of its own") as refused:
                begin(one.pid, {"path": str(path)})
            assert "--inject" in refused.value.hint
        for _ in range(2):
            begin(one.pid, {"path": str(path)}, inject=True, timeout_s=120)
            until(lambda: path.exists() and load(path).device("cpu") is not None, "a device", 120)
            assert end(one.pid, timeout_s=120) == str(path)
            one.await_leave()
        assert [is_mapped(one.pid, page) for page in pages] == [False, False]
        told = one.end()
    assert changes(told) == {}
    assert load(path).footer.status == "ok"
    with Job(tmp_path, "-S", environment=FOREIGN, steps=len(told["losses"])) as other:
        assert other.end()["losses"] == told["losses"]


def test_a_request_is_withdrawn_where_no_python_runs(gdb, tmp_path):
    waits: list = []
    with Job(tmp_path, "-S", script=BUSY, environment=FOREIGN) as one:
        with pytest.raises(MissingError, match=r"has run no Python for 0\.3 s"):
            begin(
                one.pid,
                {"path": str(tmp_path / "run.json")},
                inject=True,
                timeout_s=0.3,
                waits=lambda: waits.append(1),
            )
        assert one.release() == "[] 1\n"
    assert not (tmp_path / "run.json").exists()


def test_a_function_that_does_not_come_back_leaves_the_process_as_it_was(
    gdb, tmp_path, monkeypatch
):
    found = debugger.addresses

    def with_pause(process, names):
        addresses = dict(found(process, names))
        return addresses | {"Py_AddPendingCall": found(process, ["pause"])["pause"]}

    monkeypatch.setattr(debugger, "addresses", with_pause)
    monkeypatch.setattr(debugger, "CALL_S", 5.0)
    with Job(tmp_path, "-S", script=BY_HAND, environment=FOREIGN) as one:
        process = read_process(one.pid)
        with pytest.raises(MissingError, match="gdb could not inject the call"):
            inject(process, "pass", free_page(process), tmp_path)
        assert one.runs
        after = read_process(one.pid)
        assert (after.tracer_pid, after.state in "RSD") == (0, True)
        told = one.end()
    assert changes(told) == {}


def test_a_free_page_is_free_and_apart_from_its_neighbours():
    process = read_process(int(Path("/proc/self").readlink().name))
    page = free_page(process)
    assert page % PAGE_BYTES == 0
    for line in process.maps.splitlines():
        start, stop = (int(n, 16) for n in line.split(maxsplit=1)[0].split(b"-"))
        assert not start - PAGE_BYTES < page + PAGE_BYTES <= stop + PAGE_BYTES


def pretended_gdb(folder: Path, monkeypatch, script: str) -> None:
    program = folder / "gdb"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("echo 'ptrace: Operation not permitted.'", "gdb may not attach"),
        ("echo 'memprof: queued -1'", "queue of calls is full"),
        ("echo 'warning: odd'; echo 'Cannot access memory at address 0x1'", "Cannot access memory"),
        ("exit 3", "gdb said nothing"),
    ],
)
def test_why_gdb_failed_is_said(tmp_path, monkeypatch, said, message):
    pretended_gdb(tmp_path, monkeypatch, said)
    monkeypatch.setattr(debugger, "addresses", lambda _, names: dict.fromkeys(names, 4096))
    with pytest.raises(MissingError, match=message):
        inject(read_process(int(Path("/proc/self").readlink().name)), "pass", 4096, tmp_path)


def test_a_gdb_that_cannot_write_the_registers_is_kept_from_the_job(tmp_path, monkeypatch):
    """It is tried on a process of our own: what it stopped would be left within a call."""
    attempts = tmp_path / "attempts"
    said = "Couldn't write extended state status: Bad address."
    pretended_gdb(tmp_path, monkeypatch, f'echo "$*" >> {attempts}; echo "{said}"')
    own = int(Path("/proc/self").readlink().name)
    with pytest.raises(MissingError, match="cannot write the registers") as refused:
        inject(read_process(own), "pass", 4096, tmp_path)
    assert "newer gdb" in refused.value.hint
    (attempt,) = attempts.read_text().splitlines()
    assert f"-p {own} " not in attempt


def test_no_gdb_is_said_before_anything_is_done(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingError, match="there is no gdb") as refused:
        debugger.locate_debugger()
    assert "MEMPROF=standby" in refused.value.hint


# -- Python's own door -----------------------------------------------------------------------------


def of_314(pid: int = 4711):
    """A process of Python 3.14, as far as the way into it looks at one."""
    return SimpleNamespace(pid=pid, python=(3, 14), proc=Path("/proc/self"), environment={})


def test_the_target_s_own_interpreter_is_asked_to_have_a_file_run(tmp_path, monkeypatch):
    asked = []

    def ran(words, **_):
        asked.append(words)
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.delattr(remote_exec.sys, "remote_exec", raising=False)
    monkeypatch.setattr(remote_exec.subprocess, "run", ran)
    remote_exec.run_script(of_314(), tmp_path / "command.py")
    remote_exec.replace_script(of_314())
    program = str(Path("/proc/self/exe").readlink())
    assert [(w[0], w[-2:]) for w in asked] == [
        (program, ["4711", str(tmp_path / "command.py")]),
        (program, ["4711", "/dev/null"]),
    ]


def test_an_interpreter_of_the_same_version_asks_by_itself(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(remote_exec.sys, "version_info", (3, 14, 0))
    monkeypatch.setattr(remote_exec.sys, "remote_exec", lambda *a: asked.append(a), raising=False)
    remote_exec.run_script(of_314(), tmp_path / "command.py")
    assert asked == [(4711, str(tmp_path / "command.py"))]


def test_a_refusal_of_python_s_is_told_with_the_switch_that_may_be_the_cause(tmp_path, monkeypatch):
    done = SimpleNamespace(
        returncode=1, stderr="Traceback\nRuntimeError: Remote debugging is off\n"
    )
    monkeypatch.delattr(remote_exec.sys, "remote_exec", raising=False)
    monkeypatch.setattr(remote_exec.subprocess, "run", lambda *_, **__: done)
    with pytest.raises(MissingError, match="Remote debugging is off") as refused:
        remote_exec.run_script(of_314(), tmp_path / "command.py")
    assert "PYTHON_DISABLE_REMOTE_DEBUG" in refused.value.hint


LEAKING = TRAINING.replace(
    "    losses.append", "    kept.append(torch.ones(64))\n    losses.append"
)
of_own_door = pytest.mark.skipif(
    sys.version_info < OLDEST, reason="needs Python 3.14, whose sys.remote_exec it tries"
)


@of_own_door
def test_python_s_own_door_is_gone_through_and_nothing_is_left(tmp_path):
    path = tmp_path / "run.json"
    with Job(tmp_path, "-S", script=LEAKING, environment=FOREIGN) as one:
        for _ in range(2):
            begin(one.pid, {"path": str(path)}, timeout_s=120)
            until(lambda: path.exists() and load(path).device("cpu") is not None, "a device", 120)
            assert end(one.pid, timeout_s=120) == str(path)
            one.await_leave()
        told = one.end()
    assert changes(told) == {}
    assert load(path).footer.status == "ok"
    with Job(
        tmp_path, "-S", script=LEAKING, environment=FOREIGN, steps=len(told["losses"])
    ) as other:
        assert other.end()["losses"] == told["losses"]


@of_own_door
def test_a_file_that_python_has_not_run_in_time_is_withdrawn(tmp_path):
    with Job(tmp_path, "-S", script=BUSY, environment=FOREIGN) as one:
        with pytest.raises(MissingError, match=r"has run no Python for 0\.3 s"):
            begin(one.pid, {"path": str(tmp_path / "run.json")}, timeout_s=0.3)
        assert one.release() == "[] 1\n"
    assert not (tmp_path / "run.json").exists()


@of_own_door
@pytest.mark.parametrize("how", ["variable", "option"])
def test_a_process_that_has_shut_its_door_is_refused_with_the_hint(tmp_path, how):
    words = ("-X", "disable-remote-debug") if how == "option" else ()
    shut = {"PYTHON_DISABLE_REMOTE_DEBUG": "1"} if how == "variable" else {}
    with Job(tmp_path, "-S", *words, script=BY_HAND, environment={**FOREIGN, **shut}) as one:
        with pytest.raises(MissingError, match=r"sys\.remote_exec refuses process") as refused:
            begin(one.pid, {"path": str(tmp_path / "run.json")})
        assert "disable-remote-debug" in refused.value.hint
        assert "--inject" in refused.value.hint
        assert changes(one.end()) == {}


RUNS_FILES = """
import os, signal, sys, pathlib
box = pathlib.Path(sys.argv[1] + ".box")
box.mkdir()
def run(*_):
    for file in sorted(box.glob("*.py")):
        try:
            text = file.rename(file.with_suffix(".taken")).read_text()
        except FileNotFoundError:  # of two signals in a row the other has run it
            continue
        exec(compile(text, "command", "exec"), {})
signal.signal(signal.SIGUSR1, run)
"""
"""A program that runs files in a namespace of their own when it is told to, as 3.14 does."""


def have_run(process: Process, script: Path) -> None:
    """Have such a program run a file; several wait for one another, as signals do not."""
    words = Path("/proc", str(process.pid), "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    name = f"{time.monotonic_ns()}-{threading.get_ident()}"
    written = Path(words[-2].decode() + ".box", f"{name}.written")
    written.write_text(script.read_text())
    written.rename(written.with_suffix(".py"))
    os.kill(process.pid, signal.SIGUSR1)


def test_the_file_that_314_is_given_opens_the_socket_and_leaves_no_name(tmp_path, monkeypatch):
    """The way is 3.14's but for who delivers the file. Of what is found the program prints nothing."""
    path = tmp_path / "run.json"
    with Job(tmp_path, "-S", script=RUNS_FILES + LEAKING, environment=FOREIGN) as one:
        monkeypatch.setattr(enter, "run_script", have_run)
        monkeypatch.setattr(enter, "OLDEST", (3, 10))
        begin(one.pid, {"path": str(path)}, timeout_s=120)
        assert status(read_process(one.pid)) == str(path)
        until(lambda: load(path).findings, "a finding", 120)
        end(one.pid, timeout_s=120)
        one.await_leave()
        told = one.end()
    assert changes(told) == {}


@pytest.fixture
def entered(tmp_path, monkeypatch):
    """What has a job run files, as 3.14 would; a call says how often that was done."""
    delivered = []

    def deliver(process, script):
        delivered.append(process.pid)
        have_run(process, script)

    monkeypatch.setattr(enter, "run_script", deliver)
    monkeypatch.setattr(enter, "OLDEST", (3, 10))
    return delivered


def test_a_process_that_stays_is_not_entered_again(tmp_path, entered):
    path = str(tmp_path / "run.json")
    with Job(tmp_path, "-S", script=RUNS_FILES + BY_HAND, environment=FOREIGN) as one:
        process = read_process(one.pid)
        begin(one.pid, {"path": path}, timeout_s=120)
        assert end(one.pid, stay=True, timeout_s=120) == path
        assert status(process) == "standby"
        begin(one.pid, {"path": path}, timeout_s=120)
        assert status(process) == path
        end(one.pid, timeout_s=120)
        one.await_leave()
        assert entered == [one.pid]
        told = one.end()
    assert changes(told) == {}


def test_of_two_who_attach_at_once_one_is_told_of_the_other(tmp_path, entered):
    paths = [str(tmp_path / f"{name}.json") for name in "ab"]

    def attach(path):
        try:
            return begin(one.pid, {"path": path}, timeout_s=120)
        except MemprofError as error:
            return error.message

    with Job(tmp_path, "-S", script=RUNS_FILES + BY_HAND, environment=FOREIGN) as one:
        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(attach, paths))
        recorded = [path for path in answers if path in paths]
        (refusal,) = [answer for answer in answers if answer not in paths]
        told_of = f"recorded already, into {recorded[0]}", "another memprof attach is just going in"
        assert any(words in refusal for words in told_of)
        assert end(one.pid, timeout_s=120) == recorded[0]
        one.await_leave()
        told = one.end()
    assert changes(told) == {}
    assert sorted(str(p) for p in tmp_path.glob("*.json")) == recorded


ENTERED_AGAIN = """
import json, pathlib, sys, threading
entry, folder, moment = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
lent, version = json.loads(sys.argv[4])
answers = {}

def enter(name):
    request = folder / name
    request.write_text(json.dumps({"lent": dict(lent), "version": version}))
    exec(compile(entry.read_text(), "entry.py", "exec"),
         {"__name__": "memprof attach", "request": str(request)})
    answers[name] = json.loads(pathlib.Path(f"{request}.result").read_text())

def at_the_moment(event, arguments):
    name = arguments[0].co_filename if event == "exec" else event
    if name.endswith(moment) and "second" not in answers:
        answers["second"] = {}
        enter("second")

finders = list(sys.meta_path)
sys.addaudithook(at_the_moment)
enter("first")
threads = [thread.name for thread in threading.enumerate()]
sys.modules["memprof.record.standby"].standing_by().close()
print(json.dumps([answers, threads, sys.meta_path == finders, threading.active_count()]))
"""
"""What enters is entered itself, at one moment, as happens to the handler of a signal."""


@pytest.mark.parametrize(
    "moment",
    ["memprof/__init__.py", "memprof/record/standby.py", "socket.bind"],
)
def test_a_process_that_is_entered_in_the_midst_of_entering_has_one_socket(tmp_path, moment):
    lent = lent_packages(read_process(int(Path("/proc/self").readlink().name)))
    entry = Path(enter.__file__).with_name("entry.py")
    words = [entry, tmp_path, moment, json.dumps([lent, __version__])]
    answers, threads, is_as_before, left = json.loads(
        subprocess.run(
            [sys.executable, "-S", "-c", ENTERED_AGAIN, *words],
            env=FOREIGN,
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
    )
    assert "another memprof attach is just going in" in answers["second"]["error"]
    assert Path(answers["first"]["socket"]).suffix == ".sock"
    assert threads.count("memprof standby") == 1
    assert (is_as_before, left) == (True, 1)


def test_a_program_that_records_itself_is_left_as_it_was(tmp_path, entered):
    """It stood not by before, and does not do so after the refusal."""
    own = "import memprof; memprof.start('own.json')\n"
    with Job(tmp_path, script=RUNS_FILES + own + BY_HAND) as one:
        with pytest.raises(MemprofError, match=r"recorded already, into .*own\.json"):
            begin(one.pid, {"path": str(tmp_path / "run.json")}, timeout_s=120)
        one.await_leave()
        assert entered == [one.pid]
        told = one.end()
    assert changes(told) == {}
    assert load(tmp_path / "own.json").footer.status == "ok"


def test_a_file_that_has_not_run_in_time_is_replaced(tmp_path, monkeypatch):
    replaced, given = [], []
    monkeypatch.setattr(enter, "run_script", lambda _, script: given.append(script))
    monkeypatch.setattr(enter, "replace_script", lambda _: replaced.append(given[0].exists()))
    monkeypatch.setattr(enter, "OLDEST", (3, 10))
    with Job(tmp_path, "-S", script=BY_HAND, environment=FOREIGN) as one:
        check_may_trace(read_process(one.pid))
        with pytest.raises(MemprofError, match=r"has run no Python for 0\.2 s"):
            begin(one.pid, {"path": str(tmp_path / "run.json")}, timeout_s=0.2)
    assert replaced == [True]
    assert not given[0].parent.exists()
