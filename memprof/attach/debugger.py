"""One short injection by gdb: a command is put into Python's own queue of calls for later.

The process is stopped wherever it is, inside an allocator or a driver as well, so nothing may be
called there that takes a lock, allocates or enters Python. Two functions are called: ``mmap``, a
bare system call, for a page that holds the command's text; and ``Py_AddPendingCall``, which is made
to be called from the handler of a signal, in any thread, without the interpreter's lock. Then the
debugger is gone. The main thread runs the command by itself, with the lock, where it would run the
handler of a signal: ``PyRun_SimpleString`` has the very form of such a call.

If one of the two does not come back, the debugger is interrupted and puts the thread back to where
it was.

A gdb that is older than the processor may be unable to set the registers: gdb 13.1 cannot where
there is AMX, and what it stopped is left within a system call that was cut off. So it calls a
function in a process of our own first, and the job is not touched where that fails.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from memprof.attach.elf import addresses
from memprof.attach.processes import Process, read_process
from memprof.errors import MissingError

__all__ = ["CALL_S", "PAGE_BYTES", "free_page", "inject", "locate_debugger", "rehearse"]

PAGE_BYTES = 4096
_LOWEST, _HIGHEST = 1 << 32, 1 << 46
_READ_WRITE, _PRIVATE_ANONYMOUS_NOREPLACE = 3, 0x100022
CALL_S = 10.0
"""Attaching to all threads, two calls and leaving take a fraction of a second."""
_FUNCTIONS = ("mmap", "Py_AddPendingCall", "PyRun_SimpleString")
_CANNOT_WRITE = r"Couldn't write (?:extended state|floating point|registers)"
"""What gdb says of a call whose registers it could not set."""
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
    rehearse(debugger)
    text = command.encode() + b"\0"
    if len(text) > PAGE_BYTES:
        raise MissingError("the path of the folder for temporary files is too long", "set TMPDIR")
    at = addresses(process, _FUNCTIONS)
    (folder / "text").write_bytes(text)
    script = folder / "inject.gdb"
    script.write_text(_script(at, page, folder / "text"))
    output = _run([*_attached(debugger, process.pid), "-x", str(script)])
    if "memprof: queued 0" not in output:
        raise _failure(process, output)


@functools.cache
def rehearse(debugger: str) -> None:
    """Have the debugger call a function in a process of our own, and let that go on.

    Raises:
        MissingError: it cannot write this processor's registers.
    """
    waiting = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", waiting],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()  # it has loaded what it is made of
            at = addresses(read_process(process.pid), ("getpid",))["getpid"]
            call = f"print ((int (*)(void)) {at:#x})()"
            output = _run([*_attached(debugger, process.pid), "-ex", call])
        finally:
            process.kill()
    if re.search(_CANNOT_WRITE, output):
        raise MissingError(
            "this gdb cannot write the registers of this processor, and would leave the process "
            "within a call that was cut off",
            "install a newer gdb (13.1 cannot, 16.3 can), or start the job with MEMPROF=standby",
        )


def _attached(debugger: str, pid: int) -> list[str]:
    """The words by which gdb attaches to a process, to run a script and leave it."""
    settings = [word for line in _SETTINGS for word in ("-iex", line)]
    return [debugger, "-nx", "-q", "-batch", *settings, "-p", str(pid)]


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
