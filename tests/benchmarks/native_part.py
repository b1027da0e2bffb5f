"""Whether memprof's native part is there, and recordings with and without it."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager

from memprof.errors import MemprofError

__all__ = ["has_native_part", "native_part"]

_VARIABLE = "MEMPROF_NATIVE"


@functools.cache
def has_native_part() -> bool:
    """Whether this memprof has one for this torch; it is built if it can be, which is told if not."""
    if importlib.util.find_spec("memprof.native") is None:
        return False
    native = importlib.import_module("memprof.native")
    if not native.available():
        try:
            native.build()
        except MemprofError as error:
            print(f"without the native part: {error}")
    return bool(native.available())


@contextmanager
def native_part(*, used: bool) -> Iterator[None]:
    """Recordings that begin in the block use it, or do not; else the best that is there counts."""
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = "1" if used else "0"
    try:
        yield
    finally:
        os.environ.pop(_VARIABLE)
        if before is not None:
            os.environ[_VARIABLE] = before
