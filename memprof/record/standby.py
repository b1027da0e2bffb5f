"""Recordings that begin and end when `memprof attach` and `memprof detach` ask for them.

A request comes on the thread of the private socket. What it asks for is done in the main thread,
between two of its instructions, or not at all.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from memprof.attach.server import RequestServer
from memprof.errors import MemprofError, MissingError, SettingsError
from memprof.record.options import Options
from memprof.record.process import DEFAULT_PATH
from memprof.sources.loop.main_thread import MainThread
from memprof.version import __version__

if TYPE_CHECKING:
    from memprof.record.tracker import Tracker

from memprof.cpython.signal_errors import is_of_signal

__all__ = ["Standby", "stand_by_attached", "standing_by"]

_PERIOD_S = 0.02
"""While a request waits for the main thread it is looked after so often."""
_PATIENCE_S = 30.0
_LOADED_BEFORE = (
    "memprof.record.session",
    "memprof.sources.host",
    "memprof.sources.nvml",
    "memprof.referrers.survivor_watch",
    "memprof.sources.cpu.dispatch_source",
)
"""Imported on the socket's thread, so that the main thread does not wait for it."""
_REQUEST_OPTIONS = (
    "budget",
    "sample_interval_s",
    "window_steps",
    "max_events",
    "max_bytes",
    "allowance_s",
)


class Standby:
    """What this process answers to requests; it records nothing before one begins a recording."""

    def __init__(
        self,
        path: str = DEFAULT_PATH,
        options: Options | None = None,
        *,
        undo: Callable[[], None] | None = None,
        page: tuple[int, int] | None = None,
    ) -> None:
        """``path`` and ``options`` hold where a request names none.

        Where the process was entered, ``undo`` takes back what that has left, once the recording
        is over, and ``page`` is the memory that carried the command: its address and length.
        """
        self._path, self._options = path, options or Options()
        self._undo, self._page = undo, page
        self._server = RequestServer(self)
        self._tracker: Tracker | None = None
        self._due_at_s: float | None = None

    def open(self) -> str:
        """Listen from now on; the socket's path.

        Raises:
            MissingError: no socket can be had here, or this process has one already.
        """
        global _current  # noqa: PLW0603 - one socket a process
        if standing_by() is not None:
            raise MissingError("this process stands by already")
        self._server.open()
        _current = self
        atexit.register(self.close)
        return self._server.path

    def close(self) -> None:
        """End the recording, if one runs, and listen no more; safe to call twice."""
        tracker, self._tracker = self._tracker, None
        if tracker is not None:
            tracker.stop()
        self._leave()

    @property
    def is_open(self) -> bool:
        """Whether it listens, which it does not in a forked child."""
        return bool(self._server.path)

    # -- answers, on the socket's thread -------------------------------------------------------

    def answer(self, request: Mapping[str, Any], is_waiting: Callable[[], bool]) -> dict[str, Any]:
        """What `RequestServer` sends back."""
        kind = request.get("request")
        if kind == "status":
            return self._status()
        if kind == "start":
            return self._start(request, is_waiting)
        if kind == "stop":
            return self._stop(request, is_waiting)
        if kind == "leave":
            return self._leave_idle()
        raise SettingsError(f"memprof {__version__} in this process knows no request {kind!r}")

    def due_s(self) -> float | None:
        """Seconds until the recording's time is over."""
        return None if self._due_at_s is None else max(0.01, self._due_at_s - time.monotonic())

    def pass_time(self) -> None:
        """End a recording whose time is over; later, where the main thread does not run Python."""
        if self._due_at_s is None or time.monotonic() < self._due_at_s:
            return
        self._due_at_s = time.monotonic() + 1.0
        self._stop({"timeout_s": _PATIENCE_S}, lambda: True)

    def _status(self) -> dict[str, Any]:
        tracker = _active()
        return {
            "version": __version__,
            "recording": os.path.abspath(tracker.path) if tracker is not None else "",  # noqa: PTH100
            "attached": self._undo is not None,
        }

    def _start(self, request: Mapping[str, Any], is_waiting: Callable[[], bool]) -> dict[str, Any]:
        _check_idle()
        from memprof.record.tracker import Tracker

        path = str(request.get("path") or self._path)
        options = {
            name: request[name] for name in _REQUEST_OPTIONS if request.get(name) is not None
        }
        tracker = Tracker(path, msgspec.structs.replace(self._options, **options, in_progress=True))
        for name in _LOADED_BEFORE:
            importlib.import_module(name)

        def begin() -> None:
            self._free_page()
            _check_idle()
            tracker.start()

        _in_main_thread(begin, is_waiting, request)
        tracker.note(
            "attach",
            "recording began in the midst of the program: what it had allocated "
            "before has an owner, and no line",
        )
        self._tracker = tracker
        duration_s = request.get("duration_s")
        self._due_at_s = None if duration_s is None else time.monotonic() + float(duration_s)
        return {"path": os.path.abspath(tracker.path)}  # noqa: PTH100 - no links are resolved

    def _stop(self, request: Mapping[str, Any], is_waiting: Callable[[], bool]) -> dict[str, Any]:
        tracker, active = self._tracker, _active()
        if active is not None and active is not tracker:
            raise MemprofError(
                f"the program itself began the recording into {active.path}",
                "it ends with its block, or with the program",
            )
        if active is not None:
            _in_main_thread(active.stop, is_waiting, request)
        self._tracker = self._due_at_s = None
        if self._undo is not None and not request.get("stay"):
            self._leave()
        if active is None and tracker is None:
            raise MemprofError("the process is not recorded", "memprof attach begins a recording")
        return {"path": os.path.abspath(tracker.path if tracker is not None else "")}  # noqa: PTH100

    def _leave_idle(self) -> dict[str, Any]:
        """Take back an entering that came to nothing; what somebody else has begun goes on."""
        is_idle = self._tracker is None and self._undo is not None
        if is_idle:
            self._leave()
        return {"left": is_idle}

    def _leave(self) -> None:
        """Take the socket away, and what entering has left."""
        global _current  # noqa: PLW0603
        if _current is self:
            _current = None
        atexit.unregister(self.close)
        self._server.close()
        if self._undo is not None:
            self._undo()

    def _free_page(self) -> None:
        """Give back the memory that carried the command; its call has returned by now."""
        page, self._page = self._page, None
        if page is not None:
            address, length = page
            ctypes.CDLL(None).munmap(ctypes.c_void_p(address), ctypes.c_size_t(length))


_current: Standby | None = None


def standing_by() -> Standby | None:
    """What answers for this process, if anything does."""
    return _current if _current is not None and _current.is_open else None


def stand_by_attached(undo: Callable[[], None], page: list[int] | None) -> str:
    """Listen in a process that was entered, until the recording is over; the socket's path.

    Raises:
        MissingError: no socket can be had here, or the process has one already.
    """
    speak = _silence()

    def leave() -> None:
        speak()
        undo()

    standby = Standby(undo=leave, page=None if page is None else (page[0], page[1]))
    try:
        return standby.open()
    except BaseException:
        speak()
        raise


def _silence() -> Callable[[], None]:
    """Keep what memprof logs from a program that never heard of it; what takes that back.

    Python would print it on the job's standard error. The run file has it.
    """
    log, nowhere = logging.getLogger("memprof"), logging.NullHandler()
    if log.handlers or not log.propagate:  # the program has said where it is to go
        return lambda: None
    log.addHandler(nowhere)
    log.propagate = False

    def speak() -> None:
        log.removeHandler(nowhere)
        log.propagate = True

    return speak


def _active() -> Tracker | None:
    tracker = sys.modules.get("memprof.record.tracker")
    session: Tracker | None = tracker.active() if tracker is not None else None
    return session


def _check_idle() -> None:
    active = _active()
    if active is not None:
        where = os.path.abspath(active.path) if active.path else "a file to come"  # noqa: PTH100
        raise MemprofError(
            f"process {os.getpid()} is recorded already, into {where}",
            f"memprof detach {os.getpid()} ends a recording that memprof attach began",
        )
    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    if spec is None or getattr(spec, "_initializing", False):
        raise MissingError("the program has not imported torch yet", "try again in a moment")


class _Call:
    """One call in the main thread, made or withdrawn, whichever comes first."""

    def __init__(self, action: Callable[[], object]) -> None:
        self.done = threading.Event()
        self.error: BaseException | None = None
        self._action = action
        self._claim = threading.Lock()

    def withdraw(self) -> bool:
        """Whether it will never be made."""
        return self._claim.acquire(blocking=False)

    def __call__(self) -> None:
        from memprof.record.session import is_closed

        if is_closed(sys._getframe()) or not self._claim.acquire(blocking=False):
            return
        try:
            self._action()
        except BaseException as error:
            self.error = error  # whoever asked is told
            if is_of_signal(error):
                raise
        finally:
            self.done.set()


def _in_main_thread(
    action: Callable[[], object], is_waiting: Callable[[], bool], request: Mapping[str, Any]
) -> None:
    """Do something in the main thread, as soon as that runs Python.

    Raises:
        MissingError: it did not in time, or whoever asked has gone: nothing will be done.
    """
    timeout_s = float(request.get("timeout_s") or _PATIENCE_S)
    call, until_s = _Call(action), time.monotonic() + timeout_s
    main_thread = MainThread(call)
    try:
        while not call.done.is_set():
            main_thread.request()
            if call.done.wait(_PERIOD_S):
                break
            if not is_waiting() and call.withdraw():
                raise MissingError("the request was withdrawn, or the program is ending")
            if time.monotonic() > until_s and call.withdraw():
                raise MissingError(
                    f"the main thread has run no Python for {timeout_s:g} s: {_place()}; the "
                    "request is withdrawn, and nothing has changed",
                    "try again later, or give it more time with --timeout 10m",
                )
    finally:
        main_thread.close()
    if call.error is not None:
        raise call.error


def _place() -> str:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is None:
        return "it has ended"
    name = Path(frame.f_code.co_filename).name
    return f"it is in {frame.f_code.co_name}() at {name}:{frame.f_lineno}"
