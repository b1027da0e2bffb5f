"""Memory that ran out for a library or the driver beside torch's allocator: why, and what helps.

Nobody tells how much they asked for, so nothing can be replayed: what is said is what was held.
"""

from __future__ import annotations

from collections.abc import Iterator

from memprof.oom.failed_allocation import Failure
from memprof.oom.layouts import idle_bytes
from memprof.units import format_bytes
from memprof.what_if.changed_run import OUTSIDE_TORCH

__all__ = ["advice_for", "held_by", "is_full", "is_others", "is_reserved", "what_failed"]

_ENOUGH = 64 << 20
"""Bytes with which such a request is likely to be served: a handle of cuBLAS with its kernels and
workspace, a plan, a graph take some tens of MiB."""
_FRACTION_LEAST = 0.05


def what_failed(failure: Failure) -> str:
    """Who could not allocate, and in which call, in words."""
    place = f" in {failure.call}" if failure.call else ""
    if failure.beside == "CUDA":
        return f"CUDA could not allocate memory outside torch's allocator{place}"
    return f"{failure.beside} could not allocate memory{place}"


def held_by(failure: Failure) -> str:
    """Who held the device's memory, in words."""
    parts = []
    if failure.reserved >= 0:
        text = f"torch held {format_bytes(failure.reserved)}"
        if failure.unused > 0:
            text += f", of which {format_bytes(failure.unused)} reserved but unused"
        parts.append(text)
    if _others(failure) >= 0:
        parts.append(f"other processes held {format_bytes(_others(failure))}")
    if failure.free >= 0:
        parts.append(f"{format_bytes(failure.free)} were free when the driver was last asked")
    return "; ".join(parts) or "what was held then is not in the file"


def is_reserved(failure: Failure) -> bool:
    """Whether what torch held without using it would have been enough."""
    return failure.unused >= _ENOUGH and failure.unused >= _others(failure)


def is_others(failure: Failure) -> bool:
    """Whether other processes held more than torch kept unused."""
    return _others(failure) >= max(_ENOUGH, failure.unused)


def is_full(failure: Failure) -> bool:
    """Whether tensors held most of what torch and they could have; its size may not be known."""
    whole = failure.limit if failure.limit >= 0 else failure.total
    return 2 * failure.allocated >= max(whole, 1)


def advice_for(failure: Failure) -> Iterator[str]:
    """What would have left room, the surest first; each only where there is something to be had."""
    trace = failure.window.trace if failure.window is not None else None
    end = trace.end if trace is not None and not len(trace.events) else None
    idle = idle_bytes(end) if end is not None else 0
    if idle >= _ENOUGH:
        yield (
            f"torch.cuda.empty_cache() before that call: {format_bytes(idle)} are whole segments "
            "that hold no tensor"
        )
    if failure.unused >= _ENOUGH:
        yield (
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: of the "
            f"{format_bytes(failure.unused)} that lie unused between tensors less is reserved"
        )
        share = (failure.reserved - failure.unused // 2) / failure.total if failure.total > 0 else 0
        if share > _FRACTION_LEAST:
            yield (
                f"torch.cuda.set_per_process_memory_fraction({share:.2f}) at the start: torch then "
                "gives its cache back before it takes the last of the card"
            )
    if _others(failure) >= _ENOUGH:
        processes = [f"{n.name or 'process'} {n.pid}" for n in failure.neighbours[:3]]
        who = f" ({', '.join(processes)})" if processes else ""
        yield f"end what else runs on the card{who}: {format_bytes(_others(failure))}"
    if failure.beside == "cuBLAS" and "Create" in failure.call:
        yield (
            "torch.cuda.current_blas_handle() at the start of the program: the handle is then made "
            "while there is room"
        )
    if failure.allocated > max(failure.unused, _others(failure), 0):
        yield f"a smaller batch, or checkpointing: tensors hold {format_bytes(failure.allocated)}"


def _others(failure: Failure) -> int:
    if failure.others >= 0:
        return failure.others
    return max(failure.outside - OUTSIDE_TORCH, 0) if failure.outside >= 0 else -1
