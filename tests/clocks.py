"""A clock that a test sets, in the place of that by which a recording measures its own cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

__all__ = ["set_clock"]


def set_clock(monkeypatch: pytest.MonkeyPatch, now_us: Callable[[], float], *modules: str) -> None:
    """Let the clocks in some modules of memprof, and a thread's own time, be what ``now_us`` says."""
    turned = SimpleNamespace(**vars(time))
    turned.perf_counter_ns = lambda: int(now_us() * 1000)
    turned.thread_time_ns = turned.perf_counter_ns
    for module in (*modules, "cpython.thread_clock"):
        monkeypatch.setattr(f"memprof.{module}.time", turned)
