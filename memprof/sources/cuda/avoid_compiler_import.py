"""Letting torch name the frames of its stacks without importing its compiler; nothing of memory."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

__all__ = ["compiler_left_out"]

_COMPILER = "torch._inductor"


class _NotImported(ModuleType):
    """Stands for the compiler as long as nobody needs it; whoever does gets the real one."""

    def __getattr__(self, name: str) -> Any:
        # What torch asks for, to find the frames of compiled code. Another thread may have taken
        # this object for the compiler meanwhile: to it, it goes on being that.
        if name == "codecache" and vars(sys.modules["torch"]).get("_inductor") is self:
            raise AttributeError(name)
        return getattr(importlib.import_module(_COMPILER), name)


@contextmanager
def compiler_left_out(torch: Any) -> Iterator[None]:
    """Inside, a snapshot of memory does not import the compiler if the program has not.

    Before it names frames, torch looks whether compiled code is among them, by an attribute that
    imports ``torch._inductor`` when it is first asked for: 800 modules and some 2 s, in the middle
    of the job (``torch._C._profiler.symbolize_tracebacks`` shows it on a CPU). Where it was not
    imported there is no compiled code.
    """
    if _COMPILER in sys.modules or "_inductor" in vars(torch):
        yield
        return
    stand_in = _NotImported(_COMPILER)
    torch._inductor = stand_in
    try:
        yield
    finally:
        if vars(torch).get("_inductor") is stand_in:
            del torch._inductor
