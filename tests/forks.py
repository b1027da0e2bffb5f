"""Scripts run in forks of one Python that has torch loaded, each still a process of its own.

Importing torch takes longer than most of what the tests do with it. A test that is not about how a
process starts runs its script here: with memory, hooks, an exit code and an end of the interpreter
that nobody else has, in a child of a Python that has imported and done nothing else.
"""

from __future__ import annotations

import array
import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import tempfile
import threading
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess, Popen
from types import CodeType
from typing import IO, Any, NoReturn

__all__ = ["Job", "leave", "run", "run_file", "run_module", "served", "started"]

ROOT = Path(__file__).resolve().parent.parent
PYTHONPATH = os.pathsep.join(str(ROOT / folder) for folder in (".", "cli", "dashboards"))
SERVER = """
from tests import forks
script, names = forks.served({}, {})
error = None
try:
    exec(script, names)
except BaseException as raised:
    error = raised
forks.leave(error)
"""
"""No file of ours is in the stacks of a script."""
ANSWER = struct.Struct("i")
"""A process id, or an exit code as `subprocess` gives it."""
_PATIENCE_S = 300
"""What a Python may take that imports all first."""


class Job:
    """A script that runs; ``stdout`` is what it prints."""

    def __init__(self, link: socket.socket, pid: int, stdout: IO[bytes]) -> None:
        self.pid, self.stdout = pid, stdout
        self._link = link
        self._code: int | None = None

    def has_ended(self) -> bool:
        """Whether it is over."""
        return self._code is not None or bool(select.select([self._link], [], [], 0)[0])

    def kill(self) -> None:
        """End it at once, if it has not ended by itself."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, limit_s: float = 30) -> int:
        """Return its exit code when it has ended; negative where a signal ended it.

        Raises:
            AssertionError: it was killed, because it had not ended by then.
        """
        if self._code is None:
            code = _exit_code(self._link, self.pid, limit_s)
            self._code = -signal.SIGKILL if code is None else code
            assert code is not None, f"not ended after {limit_s} s; what it wrote is on stderr"
        return self._code


def run(
    code: str,
    *arguments: object,
    cwd: Path | None = None,
    only_torch: bool = False,
    limit_s: float = 600,
    **environment: str,
) -> CompletedProcess[str]:
    """Run a script to its end, as ``python -c`` would; no option in MEMPROF_* is passed on.

    ``only_torch`` runs it where neither memprof nor the parts that torch loads late are imported.
    After ``limit_s`` it is killed, and what it wrote is in the error.
    """
    server = _servers()[only_torch]
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        _ask(server, code, arguments, cwd, environment, stdout.fileno(), stderr.fileno())
        status = _exit_code(server, _answer(server), limit_s)
        texts = []
        for file in (stdout, stderr):
            file.seek(0)
            texts.append(file.read().decode())
    assert status is not None, f"not ended after {limit_s} s:\n{texts[1]}"
    return CompletedProcess([code, *map(str, arguments)], status, *texts)


def run_file(script: Path, *arguments: object, **environment: str) -> CompletedProcess[str]:
    """Run a script to its end, as ``python script`` would."""
    code = "import runpy, sys\nsys.argv = sys.argv[1:]\nrunpy.run_path(sys.argv[0], run_name='__main__')"
    return run(code, script, *arguments, **environment)


def run_module(
    module: str, *arguments: object, cwd: Path | None = None, **environment: str
) -> CompletedProcess[str]:
    """Run a module or package to its end, as ``python -m`` would."""
    code = f"import runpy\nrunpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    return run(code, *arguments, cwd=cwd, **environment)


@contextmanager
def started(
    code: str, *arguments: object, limit_s: float = 300, **environment: str
) -> Iterator[Job]:
    """Start a script, which is killed where it still runs at the end of the block, or the limit."""
    server = _servers()[False]
    reads, writes = os.pipe()
    _ask(server, code, arguments, None, environment, writes, 2)
    os.close(writes)
    with os.fdopen(reads, "rb") as stdout:
        job = Job(server, _answer(server), stdout)
        limit = threading.Timer(limit_s, job.kill)  # whoever reads what it prints waits no longer
        limit.daemon = True
        limit.start()
        try:
            yield job
        finally:
            limit.cancel()
            if not job.has_ended():
                job.kill()
            job.wait()


def _ask(
    server: socket.socket,
    code: str,
    arguments: tuple[object, ...],
    cwd: Path | None,
    environment: Mapping[str, str],
    stdout: int,
    stderr: int,
) -> None:
    plain = {n: v for n, v in os.environ.items() if not n.startswith("MEMPROF")}
    plain |= {"PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1"}
    plain["MEMPROF_NATIVE"] = os.environ.get("MEMPROF_NATIVE", "0")
    request = {
        "code": code,
        "arguments": [*map(str, arguments)],
        "cwd": str(cwd or Path.cwd()),
        "environment": plain | environment,
    }
    with tempfile.TemporaryFile("w+") as file, Path(os.devnull).open("rb") as stdin:
        json.dump(request, file)
        file.seek(0)
        files = array.array("i", [file.fileno(), stdin.fileno(), stdout, stderr])
        server.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])


def _exit_code(link: socket.socket, pid: int, limit_s: float) -> int | None:
    """Of a script, when it has ended; None if it was killed because it had not by then."""
    if select.select([link], [], [], limit_s)[0]:
        return _answer(link)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    _answer(link)
    return None


def _answer(link: socket.socket) -> int:
    assert select.select([link], [], [], _PATIENCE_S)[0], "the Python that forks does not answer"
    data = link.recv(ANSWER.size, socket.MSG_WAITALL)
    assert data, "the Python that forks has ended"
    answer: int
    (answer,) = ANSWER.unpack(data)
    return answer


@cache
def _servers() -> tuple[socket.socket, socket.socket]:
    """Our ends of the wires to two Pythons that fork: all is imported, or torch alone."""
    ours, theirs = zip(socket.socketpair(), socket.socketpair(), strict=True)
    numbers = [one.fileno() for one in theirs]
    server = Popen(
        [sys.executable, "-c", SERVER.format(*numbers)],
        env=os.environ | {"PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1"},
        pass_fds=numbers,
    )
    for one in theirs:
        one.close()

    def end() -> None:
        for one in ours:
            one.close()
        server.wait()

    atexit.register(end)
    return ours


def _import_what_scripts_need() -> None:
    """Import what torch and memprof import when the first steps are recorded and compiled.

    A child does so and says what it was, so that this process has recorded and compiled nothing.
    """
    reads, writes = os.pipe()
    before = set(sys.modules)
    pid = os.fork()
    if pid == 0:
        _record_and_compile()
        with os.fdopen(writes, "w") as names:
            json.dump([name for name in sys.modules if name not in before], names)
            names.flush()
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as names:
        loaded = json.load(names)
    os.waitpid(pid, 0)
    for name in loaded:
        with suppress(ImportError):  # torch has modules that no file is behind
            importlib.import_module(name)


def _record_and_compile() -> None:
    import torch

    import memprof

    with tempfile.TemporaryDirectory() as folder, memprof.track(Path(folder) / "run.json"):
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(30):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.compile(model, backend="aot_eager")(torch.ones(2, 4)).sum().backward()


def _serve(link: socket.socket) -> dict[str, Any]:
    """Fork for each request, and return it in the child; end when nobody can ask any more."""
    while True:
        message, files, _, _ = socket.recv_fds(link, 1, 4)
        if not message:
            os._exit(0)
        with os.fdopen(files[0]) as file:
            request: dict[str, Any] = json.load(file)
        pid = os.fork()
        if pid == 0:
            link.close()
            for target, file_number in enumerate(files[1:]):
                os.dup2(file_number, target)
                os.close(file_number)
            return request
        for file_number in files[1:]:
            os.close(file_number)
        link.sendall(ANSWER.pack(pid))
        link.sendall(ANSWER.pack(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))


def served(wire: int, wire_of_torch: int) -> tuple[CodeType, dict[str, Any]]:
    """Serve; in each child return the script to be run, and the namespace of its main module."""
    importlib.import_module("torch")
    has_torch_alone = os.fork() == 0
    if has_torch_alone:
        wire, wire_of_torch = wire_of_torch, wire
    else:
        _import_what_scripts_need()
    os.close(wire_of_torch)
    gc.collect()
    gc.freeze()  # collections and searches for holders see what a script makes, as in all tests
    with socket.socket(fileno=wire) as link:
        request = _serve(link)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv[:] = ["-c", *request["arguments"]]
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    return compile(request["code"], "<string>", "exec"), vars(module)


def leave(error: BaseException | None) -> NoReturn:
    """End as an interpreter ends, but that all that was imported is left where it is.

    Taking it apart would copy every page of it.
    """
    status = 0
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else error.code is not None
        if status is True:
            print(error.code, file=sys.stderr)
    elif error is not None:
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)
