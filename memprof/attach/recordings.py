"""Beginning and ending the recording of another process: `memprof attach` and `memprof detach`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from memprof.attach.checks import check_supported
from memprof.attach.client import ask
from memprof.attach.enter import enter
from memprof.attach.processes import Process, read_process
from memprof.errors import MemprofError, MissingError

__all__ = ["begin", "end", "status"]


def _nothing() -> None:
    """Nobody wants to know that it takes long."""


def begin(
    pid: int,
    request: Mapping[str, Any],
    *,
    inject: bool = False,
    timeout_s: float = 30.0,
    waits: Callable[[], None] = _nothing,
) -> str:
    """Begin to record a process; the path of the run file.

    ``request`` may have ``path`` and the options of `track` by their names, and ``duration_s``.
    Where the process has no socket it is entered: see `enter`.

    Raises:
        MemprofError: it is refused, or cannot be done in time; nothing is left in the process then.
    """
    process, began_s = read_process(pid), time.monotonic()
    start_request = {**request, "request": "start"}
    answer = ask(process, start_request, timeout_s, waits)
    if answer is None:
        try:
            enter(process, inject_allowed=inject, timeout_s=timeout_s, waits=waits)
        except MemprofError:
            if not status(process):
                raise
            # else somebody has entered it meanwhile, and it listens
        left_s = max(1.0, timeout_s - (time.monotonic() - began_s))
        try:
            answer = ask(process, start_request, left_s, waits)
        except BaseException:
            _leave(process)
            raise
    if answer is None:
        raise MissingError(f"process {pid} was entered, and does not listen")
    return str(answer["path"])


def _leave(process: Process) -> None:
    """Have a process that was entered for nothing take its socket away."""
    with suppress(MemprofError):  # it does not answer in time, and whoever asked is told why
        ask(process, {"request": "leave"}, 5.0)


def end(
    pid: int,
    *,
    stay: bool = False,
    timeout_s: float = 30.0,
    waits: Callable[[], None] = _nothing,
) -> str:
    """End the recording that `begin` began; the path of the run file.

    ``stay``: the process goes on listening, so that the next `begin` needs not enter it.

    Raises:
        MemprofError: it is not recorded, or did not run Python in time: then it goes on.
    """
    process = read_process(pid)
    answer = ask(process, {"request": "stop", "stay": stay}, timeout_s, waits)
    if answer is None:
        check_supported(process)
        raise MissingError(
            f"process {pid} is not recorded by memprof attach", "memprof attach lists what is"
        )
    return str(answer["path"])


def status(process: Process) -> str:
    """What is known of memprof in a process: ``standby``, the file it records into, or nothing."""
    try:
        answer = ask(process, {"request": "status"}, 2.0)
    except (MemprofError, OSError):
        return "does not answer"
    return "" if answer is None else str(answer.get("recording") or "standby")
