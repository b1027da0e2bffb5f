"""Which threads train: what the backward pass of one is writing must not be read by another.

A backward pass runs without the interpreter's lock. It stores into ``.grad``, and drops what its
graph has saved, while other threads run Python. Reading either there is a race in C++ that ends in
a wrong count of references, and so in a crash of the job.
"""

from __future__ import annotations

import functools
import sys
import threading
from types import CodeType

from memprof.sources.loop.thread_state import NO_TASK, engine_codes, frame_of

__all__ = ["may_read_graphs", "may_read_tensors", "note_training", "take_refusals"]

_training: set[int] = set()
"""Idents of threads that have trained, and of some that have ended since."""
_refusals = 0
_COUNTS_TOGETHER = "2.11"
"""From this version on an object of Python's and its tensor keep each other by one count. Before, a
tensor may end while the collector still lists its object."""


def note_training() -> None:
    """The calling thread trains: backward passes are to be expected in it from now on."""
    _training.add(threading.get_ident())


def may_read_graphs() -> bool:
    """Whether the calling thread may read gradients, and the graphs of all tensors there are.

    Not while another thread lives that has trained, or that is in a backward pass now.
    """
    global _refusals  # noqa: PLW0603 - threads are a process's
    may = _nobody_else_trains()
    _refusals += not may
    return may


def may_read_tensors() -> bool:
    """Whether it may read what tensors the collector lists, of which it made only some itself."""
    import torch

    return torch.__version__ >= _COUNTS_TOGETHER or may_read_graphs()


def take_refusals() -> int:
    """How often something could not be read since the last call."""
    global _refusals
    refusals, _refusals = _refusals, 0
    return refusals


def _nobody_else_trains() -> bool:
    frames = sys._current_frames()
    try:
        if len(frames) == 1:
            return True
        here = threading.get_ident()
        _training.intersection_update(frames)
        if _training - {here}:
            return False
        codes = _engine_codes()
        inside = [one for one, frame in frames.items() if one != here and frame_of(codes, frame)]
        if not inside:
            return True
        # On a thread of autograd's own the pass is that of the one thread that waits for it.
        return len(inside) == 1 and _is_in_pass() and not frame_of(codes, frames.get(here))
    finally:
        frames.clear()  # it has this very frame, a cycle that would keep the job's locals


@functools.cache
def _engine_codes() -> tuple[CodeType, ...]:
    import torch

    return engine_codes(torch)


def _is_in_pass() -> bool:
    import torch

    graph_task = getattr(torch._C, "_current_graph_task_id", None)
    return graph_task is not None and graph_task() != NO_TASK
