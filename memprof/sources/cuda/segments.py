"""What every device holds at this moment, as torch's snapshot tells it; no events."""

from __future__ import annotations

import inspect
from typing import Any

from memprof.sources.cuda.avoid_compiler_import import compiler_left_out

__all__ = ["leaves_out_traces", "records_pinned", "segments_now"]


def segments_now(torch: Any) -> list[Any]:
    """The segments, without the recorder's entries where this torch can leave them out."""
    snapshot = torch.cuda.memory_snapshot
    with compiler_left_out(torch):
        if leaves_out_traces(torch):
            return list(snapshot(include_traces=False))
        return list(snapshot())


def leaves_out_traces(torch: Any) -> bool:
    """Whether the segments can be had alone: ``include_traces`` came with 2.11.

    Before, torch names the frames of its whole history for them, and throws the history away.
    """
    return "include_traces" in inspect.signature(torch.cuda.memory_snapshot).parameters


def records_pinned(torch: Any) -> bool:
    """Whether torch's recorder holds something of pinned host memory (2.14 and later).

    Who starts or stops it for CUDA without asking for both ends that, and clears it. Where nothing
    has happened there since it was turned on, it cannot be told.
    """
    record = torch.cuda.memory._record_memory_history
    if "record_pinned_host_memory" not in inspect.signature(record).parameters:
        return False
    with compiler_left_out(torch):
        snapshot = torch.cuda.memory._snapshot()
    return any(snapshot.get(key) for key in ("host_traces", "host_segments"))
