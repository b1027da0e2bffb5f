"""Errors that handlers of signals raise while memprof's code runs: they reach the program."""

from __future__ import annotations

import functools
import inspect
import itertools
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any, TypeVar

__all__ = ["QUEUED", "adder", "covers_entry", "guarded_errors", "is_of_signal", "raised_at_death"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
QUEUED: set[Any] = set()
"""What Python's queue of calls points at, and so must live until it was called."""
_HAS_TABLE = (3, 11) <= sys.version_info < (3, 15)
"""Versions whose functions begin with a look for signals, ahead of all that a ``try`` covers."""


def guarded_errors(
    kind: type[Exception] = Exception,
) -> type[Exception] | tuple[type[Exception], ...]:
    """What a guard is to keep from the job: errors of a kind, but not those of its signals.

    It is written as ``except guarded_errors() as error:``, and so asked when an error is there.
    """
    error = sys.exc_info()[1]
    return () if error is not None and is_of_signal(error) else kind


def is_of_signal(error: BaseException) -> bool:
    """Whether an error is what a handler of a signal raised: the program's, wherever it came.

    So is all that is no `Exception`: Ctrl-C, and the exit that a handler asks for. An `Exception`
    of a handler that is written in C cannot be told from one of the code that it interrupted.
    """
    return not isinstance(error, Exception) or _is_of_handler(error.__traceback__)


def covers_entry(function: _Function) -> _Function:
    """A function that begins with ``try``, which also covers what comes as it is entered.

    Python ignores what such a function raises: it is called as an object dies, by the collector,
    or from C. It looks for signals as the function begins, before the first line.
    """
    assert isinstance(function, FunctionType)
    code: Any = function.__code__
    if _HAS_TABLE and code.co_exceptiontable:
        table = _from_the_beginning(code.co_exceptiontable)
        function.__code__ = code.replace(co_exceptiontable=table)
    return function


def raised_at_death(error: BaseException) -> object:
    """An object as which dies the error is raised in the program: in its main thread.

    A function of which Python ignores what it raises returns it, and so ends before the program is
    interrupted; an exception raised before that would be ignored like the first.

    Raises:
        BaseException: the error, in another thread (it is of no signal there).
    """
    add = adder()
    if add is None or threading.current_thread() is not threading.main_thread():
        raise error
    last = _Last()
    QUEUED.add(_Interruption(error, last, add))
    return last


@functools.cache
def adder() -> Callable[[int], int] | None:
    """What puts an object into Python's queue of calls, which asks for its truth.

    It returns 0 if there was room. None in an interpreter that has no such queue.
    """
    import ctypes

    prototype = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    try:
        add = prototype(("Py_AddPendingCall", ctypes.pythonapi))
        is_true = ctypes.cast(ctypes.pythonapi.PyObject_IsTrue, ctypes.c_void_p)
    except AttributeError:
        return None
    return functools.partial(add, is_true)


class _Last:
    """What is there until a function has returned."""

    __slots__ = ("__weakref__",)


class _Notice(weakref.ref):  # type: ignore[type-arg]
    """A weak reference that a function of C takes for a number."""

    _as_parameter_ = 0


class _Interruption:
    """An error that Python's queue points at once something died: its truth raises it.

    From that death on all is done in C, so that no signal is looked for and nothing is raised
    before Python code runs again.
    """

    __slots__ = ("_error", "_notice")

    def __init__(self, error: BaseException, last: _Last, add: Callable[[int], int]) -> None:
        self._error = error.with_traceback(_within_handler(error.__traceback__))
        self._notice = _Notice(last, functools.partial(add, id(self)))

    def __bool__(self) -> bool:
        QUEUED.discard(self)
        raise self._error


def _is_of_handler(traceback: TracebackType | None) -> bool:
    return _within_handler(traceback) is not None or any(
        one.tb_frame.f_code is _Interruption.__bool__.__code__ for one in _entries(traceback)
    )


def _within_handler(traceback: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that begins with a handler of a signal."""
    codes = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    interrupted = None
    for one in _entries(traceback):
        frame = one.tb_frame
        if frame.f_code in codes or _was_given(frame, interrupted):
            return one
        interrupted = frame
    return None


def _entries(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _was_given(frame: FrameType, interrupted: FrameType | None) -> bool:
    """Whether a function got a signal's number and the frame that it interrupted, as handlers do.

    A handler may have put another in its place before it raised.
    """
    if interrupted is None:
        return False
    code, values = frame.f_code, frame.f_locals
    arguments = [values.get(name) for name in code.co_varnames[: code.co_argcount]]
    if code.co_flags & inspect.CO_VARARGS:
        rest = values.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount])
        arguments += rest if isinstance(rest, tuple) else ()
    return any(
        second is interrupted and isinstance(first, int) and first in signal.valid_signals()
        for first, second in itertools.pairwise(arguments)
    )


def _code_of(handler: Any) -> CodeType | None:
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not hasattr(handler, "__code__") and not hasattr(handler, "__func__"):
        handler = vars(type(handler)).get("__call__")
    code = getattr(getattr(handler, "__func__", handler), "__code__", None)
    return code if isinstance(code, CodeType) else None


def _from_the_beginning(table: bytes) -> bytes:
    """A table of what ``try`` covers, whose first entry begins with the function.

    An entry is four numbers: begin, length, target, depth; six bits a byte, the highest first, 64
    is set where more follow, and 128 in an entry's first byte. (InternalDocs/exception_handling.md)
    """
    begin, after = _number(table, 0)
    length, after = _number(table, after)
    sextets: list[int] = []
    length += begin
    while not sextets or length:
        sextets.append(length & 63 | (64 if sextets else 0))
        length >>= 6
    return bytes((128, *reversed(sextets))) + table[after:]


def _number(table: bytes, index: int) -> tuple[int, int]:
    value = table[index] & 63
    while table[index] & 64:
        index += 1
        value = value << 6 | table[index] & 63
    return value, index + 1
