"""Objects whose end has begun: what has reached one must not let go of it again."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

__all__ = ["keep_reference"]

_incref: Callable[[object], None] = ctypes.PYFUNCTYPE(None, ctypes.py_object)(
    ("Py_IncRef", ctypes.pythonapi)
)


def keep_reference(dying: object) -> None:
    """Never give back the caller's reference to an object that is being deallocated.

    Its count had reached zero before, so giving it back would deallocate the object once more,
    inside the first time. That first time ends it whatever the count is by then.
    """
    _incref(dying)
