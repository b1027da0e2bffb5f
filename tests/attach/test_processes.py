"""What is known of a process before it is touched, and which ones are refused."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from memprof.attach import checks
from memprof.attach.checks import check_may_trace, check_supported, lent_packages
from memprof.attach.elf import addresses
from memprof.attach.processes import of_torch, read_process
from memprof.errors import MemprofError, MissingError
from tests.attach.jobs import until

FUNCTIONS = ("Py_AddPendingCall", "PyRun_SimpleString", "mmap")
MAPS = """\
7f0000000000-7f0000001000 r--p 00000000 fd:00 42   /env/lib/python3.{minor}/site-packages/torch/lib/libtorch_python.so
7f0000002000-7f0000003000 r-xp 00001000 fd:00 43   /env/lib/python3.{minor}/site-packages/torch/_C.cpython-3{minor}{tag}-x86_64-linux-gnu.so
"""


def pretended(maps: str, torch: str = "2.13.0", **fields):
    """This process, as if its memory held something else."""
    one = dataclasses.replace(read_process(os.getpid()), pid=os.getppid(), **fields)
    one.__dict__["maps"] = maps.encode()
    one.__dict__["torch_version"] = torch
    return one


@pytest.fixture
def sleeper():
    running = subprocess.Popen(["sleep", "600"])
    until(lambda: b"600" in Path(f"/proc/{running.pid}/cmdline").read_bytes().split(b"\0"), "exec")
    yield running
    running.kill()
    running.wait()


def test_a_process_of_torch_is_recognised():
    torch = pytest.importorskip("torch")
    process = read_process(os.getpid())
    assert process.has_torch
    assert process.python == sys.version_info[:2]
    assert process.torch_version == torch.__version__
    assert Path(process.site_packages) == Path(torch.__file__).parents[1]
    assert process.user_id == os.getuid()
    assert not process.is_elsewhere("pid")
    assert os.getpid() not in [one.pid for one in of_torch()[0]]


def test_functions_are_found_where_they_are():
    found = addresses(read_process(os.getpid()), FUNCTIONS)
    for name in FUNCTIONS[:2]:
        own = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value
        assert found[name] == own
    assert found["mmap"] == ctypes.cast(ctypes.CDLL(None).mmap, ctypes.c_void_p).value


def test_a_function_that_is_nowhere_is_said():
    with pytest.raises(MissingError, match="Py_DoMagic cannot be found"):
        addresses(read_process(os.getpid()), ["mmap", "Py_DoMagic"])


def test_a_library_that_was_replaced_is_not_trusted(monkeypatch):
    process = read_process(os.getpid())
    files = [dataclasses.replace(f, inode=f.inode + 1) for f in process.mapped_files()]
    monkeypatch.setattr(type(process), "mapped_files", lambda _: iter(files))
    with pytest.raises(MissingError, match="was replaced since process"):
        addresses(process, FUNCTIONS)


def test_no_such_process():
    with pytest.raises(MissingError, match="there is no process 999999999"):
        read_process(999999999)


def test_what_is_no_python_process_is_refused(sleeper):
    with pytest.raises(MissingError, match=r"is no Python process: sleep 600"):
        check_supported(read_process(sleeper.pid))


def test_a_process_without_torch_is_refused():
    words = [sys.executable, "-c", "print(flush=True); import time; time.sleep(600)"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as running:
        running.stdout.readline()
        try:
            with pytest.raises(MissingError, match="has not loaded torch"):
                check_supported(read_process(running.pid))
        finally:
            running.kill()


def test_a_stopped_process_is_refused_with_what_lets_it_go_on(sleeper):
    sleeper.send_signal(signal.SIGSTOP)
    until(lambda: read_process(sleeper.pid).state == "T", "its stop")
    with pytest.raises(MissingError, match="is stopped") as refused:
        check_supported(read_process(sleeper.pid))
    assert f"kill -CONT {sleeper.pid}" in refused.value.hint


def test_a_process_that_has_ended_is_refused(sleeper):
    sleeper.kill()
    until(lambda: read_process(sleeper.pid).state == "Z", "its end")
    with pytest.raises(MissingError, match="has ended"):
        check_supported(read_process(sleeper.pid))


@pytest.mark.parametrize(
    ("minor", "tag", "torch", "why"),
    [
        (9, "", "2.13.0", "runs Python 3.9"),
        (15, "", "2.13.0", "runs Python 3.15"),
        (14, "t", "2.13.0", "runs Python 3.14, free-threaded"),
        (11, "", "1.13.1+cu117", r"runs torch 1\.13\.1"),
        (11, "", "", "runs torch of an unknown version"),
    ],
)
def test_versions_that_cannot_work_are_refused(minor, tag, torch, why):
    with pytest.raises(MissingError, match=why):
        check_supported(pretended(MAPS.format(minor=minor, tag=tag), torch))


def test_a_supported_process_is_accepted():
    check_supported(pretended(MAPS.format(minor=12, tag=""), "2.7.1+cu126"))


def test_a_process_that_is_debugged_is_refused():
    with pytest.raises(MissingError, match="is being debugged by process 12"):
        check_may_trace(dataclasses.replace(read_process(os.getpid()), tracer_pid=12))


def test_a_process_of_another_container_is_refused(monkeypatch):
    process = read_process(os.getpid())
    monkeypatch.setattr(type(process), "is_elsewhere", lambda _, namespace: namespace == "mnt")
    with pytest.raises(MissingError, match="another container: its files") as refused:
        check_may_trace(process)
    assert "docker exec" in refused.value.hint


def test_a_process_with_another_root_lives_among_other_files(tmp_path, monkeypatch):
    process = read_process(os.getpid())
    assert (process.has_other_root, process.own_root) == (False, Path("/"))
    other = read_process(os.getpid())
    (tmp_path / "root").symlink_to(tmp_path)
    monkeypatch.setattr(type(other), "proc", tmp_path)
    assert (other.has_other_root, other.root, other.own_root) == (
        True,
        Path("/"),
        tmp_path / "root",
    )
    with pytest.raises(MissingError, match="another container: its files"):
        check_may_trace(other)


def test_another_architecture_is_refused(monkeypatch):
    process = read_process(os.getpid())
    monkeypatch.setattr(type(process), "architecture", (1, 3))
    with pytest.raises(MissingError, match="is not built for"):
        check_may_trace(process)


@pytest.mark.parametrize(
    ("scope", "hint"), [(0, "--cap-add SYS_PTRACE"), (1, "as root"), (3, "MEMPROF=standby")]
)
def test_why_the_kernel_refuses_is_said(monkeypatch, scope, hint):
    def refused(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(checks, "trace_scope", lambda: scope)
    monkeypatch.setattr(checks.os, "open", refused)
    with pytest.raises(MissingError, match="may not be looked into") as error:
        check_may_trace(read_process(os.getpid()))
    assert hint in error.value.hint


def test_a_process_of_another_user_is_said(monkeypatch):
    process = dataclasses.replace(read_process(os.getpid()), user_id=os.getuid() + 4321)
    monkeypatch.setattr(type(process), "maps", None)
    monkeypatch.setattr(checks.os, "geteuid", lambda: os.getuid() + 1)
    monkeypatch.setattr(checks.os, "getpid", lambda: 1)
    with pytest.raises(MissingError, match="it belongs to user") as error:
        check_supported(process)
    assert "as that user" in error.value.hint


def test_packages_for_the_same_python_are_lent():
    pytest.importorskip("torch")
    lent = lent_packages(read_process(os.getpid()))
    assert Path(lent["memprof"], "memprof", "attach").is_dir()
    assert {"memprof", "numpy", "msgspec"} <= set(lent)


def test_compiled_packages_are_not_lent_to_another_python():
    other = MAPS.format(minor=10 if sys.version_info[1] != 10 else 12, tag="")
    with pytest.raises(MemprofError, match="lacks numpy") as refused:
        lent_packages(pretended(other))
    assert "pip install cuda-memprof" in refused.value.hint
