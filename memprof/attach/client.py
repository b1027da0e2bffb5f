"""Asking a process over its private socket; runs beside the job."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from memprof.attach.address import folders, short_path, socket_name
from memprof.attach.processes import Process
from memprof.attach.server import MOST_BYTES, peer
from memprof.errors import MemprofError, MissingError

__all__ = ["ask", "connected"]


def connected(process: Process) -> socket.socket | None:
    """A connection to a process that listens; None where it does not.

    Raises:
        MissingError: somebody else listens there.
    """
    for folder in folders(process.environment, process.user_id):
        connection = _connected(
            process.own_root / folder.relative_to("/"), socket_name(process.inner_pid)
        )
        if connection is None:
            continue
        pid, user_id = peer(connection)
        if user_id != process.user_id or pid not in (0, process.pid):
            connection.close()
            raise MissingError(
                f"the socket of {process.pid} is held by process {pid} of user {user_id}",
                f"remove {folder / socket_name(process.inner_pid)}",
            )
        return connection
    return None


def _connected(folder: Path, name: str) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX)
    try:
        with short_path(folder, name) as address:
            connection.connect(address)
    except OSError:  # no such file, or nobody listens any more
        connection.close()
        return None
    return connection


def ask(
    process: Process,
    request: Mapping[str, Any],
    timeout_s: float,
    waits: Callable[[], None] = lambda: None,
) -> dict[str, Any] | None:
    """What the process answers; None where it does not listen.

    ``waits`` is called once if there is no answer after two seconds. When the time is up, or this
    is interrupted, the connection is closed, by which the process knows that the request is
    withdrawn.

    Raises:
        MemprofError: it refused, or did not answer in time.
    """
    connection = connected(process)
    if connection is None:
        return None
    with closing(connection):
        connection.sendall(json.dumps({**request, "timeout_s": timeout_s}).encode() + b"\n")
        received = _answer(connection, timeout_s, waits)
    answer: dict[str, Any] = {}
    with suppress(ValueError):
        answer = json.loads(received)
    if not answer:
        raise MissingError(
            f"process {process.pid} did not answer within {timeout_s:g} s; the request is "
            "withdrawn",
            "give it more time with --timeout 2m",
        )
    if "error" in answer:
        raise MemprofError(str(answer["error"]), str(answer.get("hint", "")))
    return answer


_TOLD_AFTER_S = 2.0
_GRACE_S = 3.0
"""The process itself gives up when the time is over, and says why."""


def _answer(connection: socket.socket, timeout_s: float, waits: Callable[[], None]) -> bytes:
    received, began_s, has_told = b"", time.monotonic(), False
    while not received.endswith(b"\n") and len(received) < MOST_BYTES:
        left_s = timeout_s + _GRACE_S - (time.monotonic() - began_s)
        if left_s <= 0:
            break
        connection.settimeout(left_s if has_told else min(left_s, _TOLD_AFTER_S))
        try:
            part = connection.recv(MOST_BYTES)
        except TimeoutError:
            if not has_told:
                has_told = True
                waits()
            continue
        if not part:
            break
        received += part
    return received
