"""Whether memprof's native part is there, and recordings with and without it."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["has_native_part", "native_part"]

_VARIABLE = "MEMPROF_NATIVE"


def has_native_part() -> bool:
    """Whether this memprof has one that works with this torch."""
    if importlib.util.find_spec("memprof.native") is None:
        return False
    return bool(importlib.import_module("memprof.native").available())


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
