"""The private Unix socket of a process, and the thread that answers on it; runs inside the job.

It imports neither torch nor numpy. The thread sleeps in the kernel until somebody connects.
"""

from __future__ import annotations

import functools
import json
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from memprof.attach.address import folders, make_private, short_path, socket_name
from memprof.errors import MemprofError, MissingError
from memprof.log import LOG

__all__ = ["MOST_BYTES", "Answers", "RequestServer", "can_serve", "peer"]

MOST_BYTES = 1 << 16
"""A request, and an answer, are one line of JSON of at most so many bytes."""
_PATIENCE_S = 5.0
"""A client that has connected must send its line within this time."""


class Answers(Protocol):
    """Who says what is answered, on the server's thread."""

    def answer(self, request: Mapping[str, Any], is_waiting: Callable[[], bool]) -> dict[str, Any]:
        """The answer; ``is_waiting`` tells whether the client is still there.

        Raises:
            MemprofError: the request cannot be met; the client is told.
        """

    def due_s(self) -> float | None:
        """Seconds until `pass_time` is to be called; None: not before the next request."""

    def pass_time(self) -> None:
        """So much time has passed."""


def can_serve() -> bool:
    """Whether this system has sockets that tell who is at the other end."""
    return sys.platform == "linux" and hasattr(socket, "SO_PEERCRED")


def peer(connection: socket.socket) -> tuple[int, int]:
    """The process and the user at the other end of a Unix socket, as the kernel says."""
    size = struct.calcsize("3i")
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    pid, user_id, _ = struct.unpack("3i", credentials)
    return pid, user_id


class RequestServer:
    """Listens for requests of this process's owner, and of root, until it is closed.

    One process has one; a forked child has none.
    """

    def __init__(self, answers: Answers) -> None:
        """Nothing is opened before `open`."""
        self._answers = answers
        self._listener: socket.socket | None = None
        self._path: Path | None = None
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None

    @property
    def path(self) -> str:
        """The socket's path; empty while there is none."""
        return str(self._path or "")

    def open(self) -> None:
        """Make the socket and start the thread.

        Raises:
            MissingError: there are no such sockets here, or no folder for one.
        """
        if not can_serve():
            raise MissingError("memprof attach works on Linux only", "use memprof run or track")
        self._listener, self._path = _bound()
        self._thread = threading.Thread(target=self._run, name="memprof standby", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._thread = None
            self.close()
            raise MissingError(f"no thread could be started: {error}") from error
        _servers.append(self)
        _watch_forks()

    def close(self) -> None:
        """Remove the socket and end the thread; safe to call twice, and from the thread itself."""
        listener, self._listener = self._listener, None
        if self in _servers:
            _servers.remove(self)
        if listener is None or self._pid != os.getpid():
            return
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()
            self._path = None
        with suppress(OSError):  # wakes the thread
            listener.shutdown(socket.SHUT_RDWR)
        if self._thread not in (None, threading.current_thread()):
            self._thread.join(_PATIENCE_S)
        listener.close()

    def forget(self) -> None:
        """In a forked child: the socket is the parent's, and there is no thread here."""
        listener, self._listener, self._path = self._listener, None, None
        if listener is not None:
            listener.close()

    def _run(self) -> None:
        while (listener := self._listener) is not None:
            try:
                listener.settimeout(self._answers.due_s())
                connection, _ = listener.accept()
            except TimeoutError:
                self._guarded(self._answers.pass_time)
                continue
            except OSError:  # it was closed
                return
            with connection:
                self._guarded(self._serve, connection)

    def _guarded(self, action: Callable[..., None], *arguments: Any) -> None:
        try:
            action(*arguments)
        except Exception:  # noqa: BLE001 - whatever a client does, the job goes on
            LOG.debug("a request to memprof failed", exc_info=True)

    def _serve(self, connection: socket.socket) -> None:
        _, user_id = peer(connection)
        if user_id not in (os.geteuid(), 0):  # root may do anything to this process anyway
            return
        connection.settimeout(_PATIENCE_S)
        request = json.loads(_line(connection))
        try:
            answer = self._answers.answer(request, lambda: self._is_waiting(connection))
        except MemprofError as error:
            answer = {"error": error.message, "hint": error.hint}
        except Exception as error:  # noqa: BLE001 - the client is told, the job goes on
            answer = {"error": f"{type(error).__name__}: {error}", "hint": ""}
        connection.sendall(json.dumps(answer).encode() + b"\n")

    def _is_waiting(self, connection: socket.socket) -> bool:
        """Whether the client is still there, and the program is not about to end."""
        return self._listener is not None and _is_connected(connection)


def _bound() -> tuple[socket.socket, Path]:
    """A socket that listens, and its path; made such that nobody else can connect to it."""
    failure: MissingError | None = None
    for folder in folders(os.environ, os.geteuid()):
        listener = socket.socket(socket.AF_UNIX)
        name = socket_name(os.getpid())
        try:
            make_private(folder)
            _remove_stale(folder)
            with suppress(FileNotFoundError):  # of a process of this number that was killed
                (folder / name).unlink()
            with short_path(folder, name) as address:
                listener.bind(address)
            (folder / name).chmod(0o600)
            listener.listen(8)
        except (OSError, MissingError) as error:
            listener.close()
            failure = MissingError(f"no socket can be made in {folder}: {error}")
            continue
        return listener, folder / name
    raise failure or MissingError("no folder for a socket is known")


def _remove_stale(folder: Path) -> None:
    """Remove the sockets of processes that were killed: nobody listens on them any more."""
    for path in folder.glob("*.sock"):
        if Path("/proc", path.stem).exists():
            continue  # else it may be one of another container that shares the folder
        with socket.socket(socket.AF_UNIX) as trial, short_path(folder, path.name) as address:
            try:
                trial.connect(address)
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except OSError:
                continue


def _line(connection: socket.socket) -> bytes:
    received = b""
    while not received.endswith(b"\n") and len(received) < MOST_BYTES:
        part = connection.recv(MOST_BYTES)
        if not part:
            break
        received += part
    return received


def _is_connected(connection: socket.socket) -> bool:
    connection.settimeout(0)
    try:
        return connection.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        connection.settimeout(_PATIENCE_S)


_servers: list[RequestServer] = []


@functools.cache
def _watch_forks() -> None:
    """Once a process: Python offers no way to take this back, and without a server it is idle."""
    os.register_at_fork(after_in_child=_forked)


def _forked() -> None:
    while _servers:
        _servers.pop().forget()
