"""Objects whose end has begun: what has reached one must not let go of it again."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

__all__ = ["bury"]

_incref: Callable[[object], None] = ctypes.PYFUNCTYPE(None, ctypes.py_object)(
    ("Py_IncRef", ctypes.pythonapi)
)
_untrack: Callable[[object], None] = ctypes.PYFUNCTYPE(None, ctypes.py_object)(
    ("PyObject_GC_UnTrack", ctypes.pythonapi)
)


def bury(dying: object) -> None:
    """Never give back the caller's reference to an object whose memory is about to go.

    Giving it back would end what it stands for once more, inside the first time. And nobody else is
    to come upon it: the collector does not list it any more. Some hundred bytes of it stay.
    """
    _untrack(dying)
    _incref(dying)
