"""A clock that a test sets, in the place of that by which a recording measures its own cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

__all__ = ["set_clock"]


def set_clock(monkeypatch: pytest.MonkeyPatch, now_us: Callable[[], float], *modules: str) -> None:
    """Let the clock and the thread's processor time in some modules be what ``now_us`` returns."""
    turned = SimpleNamespace(**vars(time))
    turned.perf_counter_ns = turned.thread_time_ns = lambda: int(now_us() * 1000)
    for module in (*modules, "cpython.thread_clock"):
        monkeypatch.setattr(f"memprof.{module}.time", turned)
