"""Python's garbage collector, kept from looking at everything while memprof loads itself."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collector_paused"]


@contextmanager
def collector_paused() -> Iterator[None]:
    """No collection begins by itself in the block; afterwards the collector is as it was.

    Importing makes tens of thousands of objects and no garbage. They would set off a collection of
    all that torch's own import left behind, which takes longer than everything that memprof does.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
