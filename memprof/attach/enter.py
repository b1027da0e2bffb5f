"""Entering a process that knows nothing of memprof, so that it opens the socket: or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from memprof.attach.checks import check_may_trace, check_supported, lent_packages
from memprof.attach.debugger import PAGE_BYTES, free_page, inject, locate_debugger
from memprof.attach.processes import Process
from memprof.attach.remote_exec import OLDEST, replace_script, run_script
from memprof.errors import MemprofError, MissingError
from memprof.version import __version__

__all__ = ["enter"]

_PERIOD_S = 0.02
_TOLD_AFTER_S = 2.0
_COMMAND = """\
try: exec(compile(__import__("pathlib").Path({entry!r}).read_text("utf-8"), {entry!r}, "exec"), \
{{"__name__": "memprof attach", "request": {request!r}}})
except OSError: pass
"""
"""One statement that leaves no name; without the file, where the request was withdrawn, nothing."""


def enter(
    process: Process,
    *,
    inject_allowed: bool,
    timeout_s: float,
    waits: Callable[[], None] = lambda: None,
) -> None:
    """Have a process open its socket; all is looked at before anything is touched.

    By ``sys.remote_exec`` from Python 3.14 on, else by a debugger if that is allowed. ``waits`` is
    called once if it takes more than two seconds.

    Raises:
        MemprofError: it cannot be entered, or did not run Python in time: then the request is
            withdrawn, and nothing fires later.
    """
    check_supported(process)
    check_may_trace(process)
    lent = lent_packages(process)
    by_debugger = inject_allowed or (process.python or OLDEST) < OLDEST
    if by_debugger:
        _check_allowed(process, inject_allowed=inject_allowed)
        locate_debugger()
    page = free_page(process) if by_debugger else 0
    parameters: dict[str, Any] = {"version": __version__, "lent": lent}
    if page:
        parameters["page"] = [page, PAGE_BYTES]
    with _folder(process) as folder:
        request, entry = folder / "request", folder / "entry.py"
        request.write_text(json.dumps(parameters), encoding="utf-8")
        shutil.copyfile(Path(__file__).with_name("entry.py"), entry)
        command = _COMMAND.format(entry=str(entry), request=str(request))
        script = folder / "command.py"
        script.write_text(command, encoding="utf-8")
        for file in (request, entry, script):
            _hand_over(file, process)
        if by_debugger:
            inject(process, command, page, folder)
        else:
            run_script(process, script)
        try:
            _await(process, request, timeout_s, waits)
        except BaseException:
            if not by_debugger:
                replace_script(process)  # before the file goes, of whose absence Python would tell
            raise


def _check_allowed(process: Process, *, inject_allowed: bool) -> None:
    if inject_allowed:
        return
    version = ".".join(map(str, process.python or ()))
    raise MissingError(
        f"process {process.pid} does not stand by, and its Python {version} has no door of its own",
        f"memprof attach {process.pid} --inject goes in by a debugger, which stops it for an "
        "instant; jobs that are started with MEMPROF=standby need none",
    )


@contextlib.contextmanager
def _folder(process: Process) -> Iterator[Path]:
    """A private folder of the process's user, as long as the request lasts."""
    folder = Path(tempfile.mkdtemp(prefix="memprof-attach-"))
    try:
        _hand_over(folder, process)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _hand_over(path: Path, process: Process) -> None:
    if process.user_id != os.geteuid():  # only root comes here
        os.chown(path, process.user_id, -1)


def _await(process: Process, request: Path, timeout_s: float, waits: Callable[[], None]) -> None:
    """Wait until the process has done what was asked; withdraw it when the time is up.

    Raises:
        MemprofError: it could not, or did not in time.
    """
    result, began_s, has_told = Path(f"{request}.result"), time.monotonic(), False
    while not result.exists():
        passed_s = time.monotonic() - began_s
        # The process takes the request, and then imports memprof, which may take as long.
        if passed_s > _TOLD_AFTER_S and not has_told and request.exists():
            has_told = True
            waits()
        if not process.proc.exists():
            raise MissingError(f"process {process.pid} has ended")
        if passed_s > timeout_s and _withdrawn(request):
            raise MissingError(
                f"process {process.pid} has run no Python for {timeout_s:g} s, as in a long "
                "call of C++; the request is withdrawn, and nothing has changed",
                "try again later, or give it more time with --timeout 10m",
            )
        time.sleep(_PERIOD_S)
    answer = json.loads(result.read_text(encoding="utf-8"))
    if "error" in answer:
        raise MemprofError(str(answer["error"]), str(answer.get("hint", "")))


def _withdrawn(request: Path) -> bool:
    """Take the request back, unless the process has taken it."""
    try:
        request.unlink()
    except FileNotFoundError:
        return False
    return True
