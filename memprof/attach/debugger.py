"""One short injection by gdb: a command is put into Python's own queue of calls for later.

The process is stopped wherever it is, inside an allocator or a driver as well, so nothing may be
called there that takes a lock, allocates or enters Python. Two functions are called: ``mmap``, a
bare system call, for a page that holds the command's text; and ``Py_AddPendingCall``, which is made
to be called from the handler of a signal, in any thread, without the interpreter's lock. Then the
debugger is gone. The main thread runs the command by itself, with the lock, where it would run the
handler of a signal: ``PyRun_SimpleString`` has the very form of such a call.

If one of the two does not come back, the debugger is interrupted and puts the thread back to where
it was.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

from memprof.attach.elf import addresses
from memprof.attach.processes import Process
from memprof.errors import MissingError

__all__ = ["CALL_S", "PAGE_BYTES", "free_page", "inject", "locate_debugger"]

PAGE_BYTES = 4096
_LOWEST, _HIGHEST = 1 << 32, 1 << 46
_READ_WRITE, _PRIVATE_ANONYMOUS_NOREPLACE = 3, 0x100022
CALL_S = 10.0
"""Attaching to all threads, two calls and leaving take a fraction of a second."""
_FUNCTIONS = ("mmap", "Py_AddPendingCall", "PyRun_SimpleString")
_SETTINGS = (
    "set auto-load off",
    "set auto-solib-add off",
    "set debuginfod enabled off",
    "set pagination off",
    "set confirm off",
    "set width 0",
)


def locate_debugger() -> str:
    """The path of gdb.

    Raises:
        MissingError: there is none.
    """
    path = shutil.which("gdb")
    if path is None:
        raise MissingError(
            "there is no gdb, by which a Python before 3.14 is entered",
            "install it (Debian: apt install gdb), or start the job with MEMPROF=standby",
        )
    return path


def free_page(process: Process) -> int:
    """An address at which a page is free in a process's memory, with free ones around it."""
    occupied_ranges = [
        tuple(int(number, 16) for number in line.split(maxsplit=1)[0].split(b"-"))
        for line in (process.maps or b"").splitlines()
    ]
    distance, end = 16 * PAGE_BYTES, _LOWEST
    for start, stop in sorted(occupied_ranges):
        if start - end >= 3 * distance and end < _HIGHEST:
            break
        end = max(end, stop)
    return end + distance


def inject(process: Process, command: str, page: int, folder: Path) -> None:
    """Have the main thread of a process run a line of Python soon; it must raise nothing.

    ``page`` is a free address in it (`free_page`), ``folder`` a private one for two files.

    Raises:
        MissingError: there is no debugger, it was refused, or a function is not found; the process
            goes on as if nothing had been.
    """
    debugger = locate_debugger()
    text = command.encode() + b"\0"
    if len(text) > PAGE_BYTES:
        raise MissingError("the path of the folder for temporary files is too long", "set TMPDIR")
    at = addresses(process, _FUNCTIONS)
    (folder / "text").write_bytes(text)
    script = folder / "inject.gdb"
    script.write_text(_script(at, page, folder / "text"))
    settings = [word for line in _SETTINGS for word in ("-iex", line)]
    words = [debugger, "-nx", "-q", "-batch", *settings, "-p", str(process.pid), "-x", str(script)]
    output = _run(words)
    if "memprof: queued 0" not in output:
        raise _failure(process, output)


def _script(at: dict[str, int], page: int, text: Path) -> str:
    """What gdb does; an error ends it, and then it leaves the process."""
    numbers = "long, long, long, long, long, long"
    return f"""\
handle all nostop noprint pass
set unwindonsignal on
set scheduler-locking on
set $page = ((long (*)({numbers})) {at["mmap"]:#x})({page:#x}, {PAGE_BYTES}, {_READ_WRITE}, \
{_PRIVATE_ANONYMOUS_NOREPLACE:#x}, -1, 0)
printf "memprof: page %#lx\\n", $page
if $page == {page:#x}
restore {text} binary {page:#x}
set $queued = ((int (*)(long, long)) {at["Py_AddPendingCall"]:#x})\
({at["PyRun_SimpleString"]:#x}, {page:#x})
printf "memprof: queued %d\\n", $queued
end
detach
"""


def _run(words: list[str]) -> str:
    """What the debugger says; it is interrupted, and then ended, when it takes too long."""
    running = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C is for memprof, which ends it in an orderly way
        env={**os.environ, "LC_ALL": "C", "DEBUGINFOD_URLS": ""},
    )
    for number in (None, signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            running.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return running.communicate(timeout=CALL_S)[0]
    raise MissingError("gdb does not end")


def _failure(process: Process, output: str) -> MissingError:
    if not process.proc.exists():
        return MissingError(f"process {process.pid} ended meanwhile")
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    lines = [line for line in lines if not line.endswith("detached]")]
    if re.search(r"ptrace: |Could not attach|Operation not permitted", output):
        return MissingError(
            f"gdb may not attach to process {process.pid}: {lines[-1]}",
            "run memprof attach as root, or start the job with MEMPROF=standby",
        )
    if "memprof: queued -1" in output:
        return MissingError(
            f"Python's queue of calls is full in process {process.pid}", "try again"
        )
    what = lines[-1] if lines else "gdb said nothing"
    return MissingError(f"gdb could not inject the call: {what}", "the process goes on untouched")
