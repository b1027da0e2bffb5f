"""The private socket: whose it is, who may ask, and what a bad client or a fork does to it."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from memprof.attach import server as room
from memprof.attach.address import folders, make_private
from memprof.attach.client import ask
from memprof.attach.processes import read_process
from memprof.attach.server import MOST_BYTES, RequestServer
from memprof.errors import MemprofError, MissingError
from tests.attach.jobs import until


class Answers:
    """Says what it was asked, and whether the client was still there."""

    def __init__(self):
        self.left = threading.Event()
        self.passed = threading.Event()
        self.requests = []

    def answer(self, request, is_waiting):
        self.requests.append(request)
        if request["request"] == "refuse":
            raise MissingError("not today", "tomorrow")
        if request["request"] == "fail":
            raise ValueError("broken")
        if request["request"] == "wait":
            until(lambda: not is_waiting(), "the client's end")
            self.left.set()
        return {"heard": request["request"], "waiting": is_waiting()}

    def due_s(self):
        return 0.05

    def pass_time(self):
        self.passed.set()


CLOSED = BrokenPipeError, ConnectionResetError
"""What a client may get in place of the end, where the server closes the connection: a write after
that is a broken pipe, and closing with something unread is a reset."""


@pytest.fixture
def answers(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return Answers()


@pytest.fixture
def server(answers):
    one = RequestServer(answers)
    one.open()
    yield one
    one.close()


def connection(server) -> socket.socket:
    one = socket.socket(socket.AF_UNIX)
    one.settimeout(10)
    one.connect(server.path)
    return one


def asked(server, request: str) -> dict:
    with connection(server) as one:
        one.sendall(json.dumps({"request": request}).encode() + b"\n")
        return json.loads(one.makefile().readline())


def test_the_socket_and_its_folder_are_the_owner_s_alone(server, tmp_path):
    path = Path(server.path)
    assert path == tmp_path / "memprof" / f"{os.getpid()}.sock"
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_request_is_answered_and_a_refusal_is_told(server):
    assert asked(server, "hello") == {"heard": "hello", "waiting": True}
    assert asked(server, "refuse") == {"error": "not today", "hint": "tomorrow"}
    assert asked(server, "fail") == {"error": "ValueError: broken", "hint": ""}


def test_a_client_that_goes_away_is_noticed(server, answers):
    with connection(server) as one:
        one.sendall(b'{"request": "wait"}\n')
    assert answers.left.wait(10)
    assert asked(server, "hello")["heard"] == "hello"


@pytest.mark.parametrize("sent", [b"", b"\n", b"no json\n", b"[1]\n", b"\xff\xfe\n"])
def test_what_is_no_request_ends_nothing(server, sent):
    with connection(server) as one:
        one.sendall(sent)
        one.shutdown(socket.SHUT_WR)
        one.recv(MOST_BYTES)
    assert asked(server, "hello")["heard"] == "hello"


def test_a_request_without_end_is_cut_off(server):
    with connection(server) as one, suppress(*CLOSED):
        one.sendall(b"x" * (4 * MOST_BYTES))
    assert asked(server, "hello")["heard"] == "hello"


def test_another_user_gets_no_answer(server, answers, monkeypatch):
    received = b""
    with monkeypatch.context() as patches:
        patches.setattr(room, "peer", lambda _: (1, os.geteuid() + 12345))
        with connection(server) as one, suppress(*CLOSED):
            one.sendall(b'{"request": "hello"}\n')
            received = one.recv(100)
        with connection(server) as one, suppress(*CLOSED):  # comes to an end after the first one
            received += one.recv(100)
    assert received == b""
    assert answers.requests == []
    assert asked(server, "hello")["heard"] == "hello"


def test_the_kernel_says_who_is_at_the_other_end():
    mine, theirs = socket.socketpair()
    with mine, theirs:
        assert room.peer(mine) == (os.getpid(), os.geteuid())


def test_time_passes_without_a_request(server, answers):
    assert answers.passed.wait(10)


def test_closing_ends_the_thread_and_removes_the_socket(server):
    path = Path(server.path)
    server.close()
    server.close()
    assert not path.exists()
    assert not [t for t in threading.enumerate() if t.name == "memprof standby"]


def test_a_forked_child_neither_answers_nor_removes_the_socket(server):
    path = Path(server.path)
    child = os.fork()
    if child == 0:
        is_gone = server.path == ""
        server.close()
        os._exit(0 if is_gone else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert path.exists()
    assert asked(server, "hello")["heard"] == "hello"


def test_sockets_of_killed_processes_are_replaced_and_removed(answers, tmp_path):
    folder = tmp_path / "memprof"
    folder.mkdir(mode=0o700)
    for name in (f"{os.getpid()}.sock", "999999999.sock"):
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(folder / name))
    server = RequestServer(answers)
    server.open()
    try:
        assert [p.name for p in folder.iterdir()] == [f"{os.getpid()}.sock"]
        assert asked(server, "hello")["heard"] == "hello"
    finally:
        server.close()


@pytest.mark.parametrize("what", ["open", "link", "file"])
def test_a_folder_that_others_could_have_made_is_not_used(tmp_path, what):
    folder = tmp_path / "memprof"
    if what == "open":
        folder.mkdir()
        folder.chmod(0o755)
    elif what == "link":
        (tmp_path / "real").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "real")
    else:
        folder.touch()
    with pytest.raises(MissingError, match="memprof"):
        make_private(folder)


def test_the_temporary_folder_serves_where_there_is_no_runtime_folder(
    answers, monkeypatch, tmp_path
):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "missing"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    server = RequestServer(answers)
    server.open()
    try:
        assert Path(server.path).parent == tmp_path / f"memprof-{os.getuid()}"
        assert Path(server.path).parent == folders(os.environ, os.getuid())[1]
    finally:
        server.close()


def test_a_long_path_is_no_hindrance(answers, monkeypatch, tmp_path):
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    server = RequestServer(answers)
    server.open()
    try:
        assert len(server.path) > 108
        process = read_process(os.getpid())
        monkeypatch.setattr(type(process), "environment", {"XDG_RUNTIME_DIR": str(deep)})
        assert ask(process, {"request": "hello"}, 5)["heard"] == "hello"
        with pytest.raises(MemprofError, match="not today"):
            ask(process, {"request": "refuse"}, 5)
    finally:
        server.close()
