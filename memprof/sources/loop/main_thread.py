"""Running a function of memprof's in the program's main thread, between two of its instructions.

Where a program crosses nothing that is hooked (no module, no optimizer, no step) its own thread
must still be asked now and then to read what was recorded. Another thread must not do that: torch
keeps the interpreter's lock while it waits for the allocator's. So the other thread only asks for
the call, through CPython's stable function for that (``Py_AddPendingCall``), and the main thread
makes it where it would also run the handler of a signal.

Python code is entered through ``PyObject_IsTrue`` and not through a callback of ctypes: that one
would swallow what the program's own handlers of signals raise while the call lasts.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import CodeType, FrameType
from typing import Any, Protocol, TypeVar

from memprof.cpython.signal_errors import QUEUED, adder, guarded_errors, is_of_signal
from memprof.log import LOG

__all__ = [
    "PASSING_ON",
    "Alarm",
    "Beat",
    "LockAlarm",
    "MainThread",
    "codes_within",
    "hands_on",
    "passes_on",
]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_PACKAGE, _LAUNCHER = "memprof.", "memprof.record.launch"
_IMPORT_SYSTEM = "<frozen importlib._bootstrap>"
_USED = ("msgspec", "numpy", "orjson", "psutil", "pynvml", "torch")
_HANDING_ON: set[CodeType] = set()
PASSING_ON: set[CodeType] = set()
"""Code of memprof's that calls the program's, see `passes_on`."""
_turns: dict[int, threading.Lock] = {}
"""By the process: a lock that is held while a call of memprof's waits in Python's queue or is made.

The queue has few places. A child that was forked has a lock of its own, as nobody releases this.
Where a program has its calls traced, CPython 3.11 never leaves the beginning of a function while
another call waits in the queue (its `DO_TRACING` looks there again and again); it would wait until
this call is over.
"""


def hands_on(function: _Function) -> _Function:
    """A function of memprof's, as it is, that runs the program's code: calls may come inside."""
    _HANDING_ON.add(function.__code__)
    return function


def passes_on(function: _Function) -> _Function:
    """A function of memprof's, as it is, in which the program's code or operators run.

    So does what is defined in it. torch.compile may compile what these call.
    """
    PASSING_ON.update(codes_within(function.__code__))
    return function


def codes_within(code: CodeType) -> list[CodeType]:
    """A function's code, and that of every function defined in it."""
    inner = [
        c for const in code.co_consts if isinstance(const, CodeType) for c in codes_within(const)
    ]
    return [code, *inner]


class MainThread:
    """Calls a function in the main thread when asked to, as soon as that runs Python.

    It is left out where memprof's own code is running there, which is never entered in its middle,
    where a library that memprof uses is being imported, in a forked child and after `close`. A
    thread that waits in C (for a lock, the network, the device) makes the call when it is back.
    """

    def __init__(self, call: Callable[[], None], add: Callable[[int], int] | None = None) -> None:
        """What ``call`` raises is logged, the first time, and never reaches the program.

        ``add`` puts an object into a queue of calls and returns 0 if there was room: Python's.
        """
        self._call = call
        self._pid = os.getpid()
        self._is_closed = self._is_logged = False
        self._add = adder() if add is None else add

    def request(self) -> bool:
        """Ask for one call, from any thread; False when one waits already or none can be had.

        Neither can it while a call of another instance waits, or lasts.
        """
        if self._is_closed or os.getpid() != self._pid or self._add is None:
            return False
        turn = _turns.setdefault(self._pid, threading.Lock())
        waiting = _Waiting(self._run, turn, self._made)
        if not turn.acquire(blocking=False):
            return False
        QUEUED.add(waiting)
        if self._add(id(waiting)) == 0:
            return True
        QUEUED.discard(waiting)  # the queue is full of other people's calls
        turn.release()
        return False

    def waiting(self) -> tuple[Callable[[bool], bool], object] | None:
        """What code in C needs to ask for a call; None where none can be had.

        It calls the first with False, which takes the lock that keeps others from asking. If that
        says yes it queues a call that asks the second for its truth.
        """
        if self._add is None:
            return None
        turn = _turns.setdefault(self._pid, threading.Lock())
        return turn.acquire, _Waiting(self._run, turn, self._made)

    def close(self) -> None:
        """No call after this; one that still waits in Python's queue does nothing."""
        self._is_closed = True

    def _run(self) -> None:
        try:
            if self._is_closed or os.getpid() != self._pid or _is_inside_memprof():
                return
            if _is_importing_what_memprof_uses():
                return
            with _without_compiler():
                self._call()
        except guarded_errors():
            if not self._is_logged:
                self._is_logged = True
                LOG.warning("what was to run in the main thread failed", exc_info=True)

    def _made(self) -> None:
        """The call was made, and another one can be asked for."""


class _Waiting:
    """One call in Python's queue: asking for its truth makes it."""

    __slots__ = ("_made", "_run", "_turn")

    def __init__(
        self, run: Callable[[], None], turn: threading.Lock, made: Callable[[], None]
    ) -> None:
        self._run, self._turn, self._made = run, turn, made

    def __bool__(self) -> bool:
        QUEUED.discard(self)
        try:
            try:
                if not sys.is_finalizing():  # torch is being taken apart
                    self._run()
            finally:
                self._turn.release()
            self._made()
        except Exception as error:  # there may be no room on the stack for one more call
            if is_of_signal(error):
                raise
        return False  # the queue takes anything else for an error


class Alarm(Protocol):
    """What a thread waits at until another one wakes it."""

    def wait(self, longest_s: float) -> None:
        """Return when `wake` was called since this last returned, or after so long."""

    def wake(self) -> None:
        """Have `wait` return, or the next one at once."""


class LockAlarm:
    """An alarm out of a lock. (An event has one inside that a fork could leave held.)"""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        """Held until the thread is to wake."""
        self._lock.acquire()

    def wait(self, longest_s: float) -> None:
        """Take the lock, which only `wake` gives back."""
        self._lock.acquire(timeout=longest_s)

    def wake(self) -> None:
        """Give the lock back."""
        with suppress(RuntimeError):  # it was woken before, and has not yet run
            self._lock.release()


class Beat:
    """Asks for something every so often, on a thread of its own, until it is closed.

    It also asks when its alarm wakes it.
    """

    PATIENCE_S = 1.0
    """What `close` waits for the thread, which asks for nothing that takes long."""

    def __init__(self, ask: Callable[[], object], interval_ms: float) -> None:
        """``ask`` runs on the thread: it must neither block nor call torch."""
        self._ask, self._interval_s = ask, interval_ms / 1000
        self._alarm: Alarm = LockAlarm()
        self._thread: threading.Thread | None = None

    def pace(self, interval_ms: float) -> None:
        """Ask so often from now on."""
        before_s, self._interval_s = self._interval_s, interval_ms / 1000
        if self._thread is not None and self._interval_s < before_s:
            self._alarm.wake()

    def start(self, alarm: Alarm | None = None) -> None:
        """Begin; safe to call twice. A closed one begins anew.

        ``alarm`` is one that others wake too when there is cause to ask.
        """
        if self._thread is not None:
            return
        self._alarm = LockAlarm() if alarm is None else alarm
        self._thread = threading.Thread(
            target=self._run, args=(self._alarm,), name="memprof beat", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError:  # no thread is to be had: the program goes on without the beat
            self._thread = None

    def close(self) -> None:
        """Ask no more, and end the thread; safe to call twice, and in a forked child."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._alarm.wake()
        if thread is not threading.current_thread():
            thread.join(self.PATIENCE_S)

    def _run(self, alarm: Alarm) -> None:
        while True:
            try:
                alarm.wait(self._interval_s)
                if self._thread is not threading.current_thread():
                    return
                self._ask()
            except Exception:  # noqa: BLE001 - Python would hand it to the program's `excepthook`
                LOG.warning("a call in the main thread was not asked for", exc_info=True)
                return


@contextmanager
def _without_compiler() -> Iterator[None]:
    """Inside, torch.compile leaves alone what runs in the middle of a compiled function."""
    if "torch._dynamo" not in sys.modules:
        yield
        return
    from torch._C._dynamo import eval_frame

    before = eval_frame.set_eval_frame(None)
    try:
        yield
    finally:
        eval_frame.set_eval_frame(before)


def _is_inside_memprof() -> bool:
    """Whether the main thread is in the middle of memprof's code, other than what hands on."""
    frame = sys._getframe(3)  # above this function, `_run` and `__bool__`
    while frame is not None:
        name = frame.f_globals.get("__name__") or ""
        if name.startswith(_PACKAGE) and name != _LAUNCHER and frame.f_code not in _HANDING_ON:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _is_importing_what_memprof_uses() -> bool:
    """Whether the main thread is in the middle of an import that memprof's own code would meet.

    A module that is there in part is believed to be whole by the thread that imports it. (numpy
    imports `numpy.ma` when `np.unique` is first called. Within that very import it never ends.)
    """
    frame: FrameType | None = sys._getframe(3)
    while frame is not None and frame.f_code.co_filename != _IMPORT_SYSTEM:
        frame = frame.f_back
    return frame is not None and any(
        getattr(getattr(module, "__spec__", None), "_initializing", False)
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in _USED
    )
