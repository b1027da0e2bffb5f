"""The sources that the options name, made; and a listener that only feels the time pass."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

from memprof import native
from memprof.errors import MemprofError
from memprof.record.options import Options
from memprof.sources.loop.loop_watch import Listener, LoopWatch
from memprof.sources.protocol import EventSource, Interner, ReadingSource

__all__ = ["Ticks", "event_sources", "reading_sources"]


def reading_sources(options: Options) -> list[ReadingSource]:
    """Those that the sampler reads."""
    from memprof.sources.host import HostSource  # psutil: 6 ms, after recording has begun
    from memprof.sources.nvml import NvmlSource

    sources: list[ReadingSource] = []
    for source in options.sources:
        if source == "host":
            sources.append(HostSource())
        elif source == "nvml":
            sources.append(NvmlSource())
        elif not isinstance(source, str) and hasattr(source, "read"):
            sources.append(cast("ReadingSource", source))
    return sources


def event_sources(
    options: Options,
    interner: Interner,
    loop_watch: LoopWatch,
    note: Callable[[str, str, str], None],
) -> list[EventSource]:
    """Those that record allocations; torch is imported, and may be built without CUDA.

    ``note`` is given a source, what it could not do and what to do about it.
    """
    torch = sys.modules["torch"]
    part = _native_part(note)
    sources: list[EventSource] = []
    for source in options.sources:
        if source == "cpu":
            sources.append(_cpu_source(options, interner, loop_watch, part, note))
        elif source == "cuda" and torch.backends.cuda.is_built():
            sources.append(_cuda_source(interner, loop_watch, part))
        elif not isinstance(source, str) and hasattr(source, "drain"):
            sources.append(cast("EventSource", source))
    return sources


def _native_part(note: Callable[[str, str, str], None]) -> Any:
    """The native part, built if it is asked for by name; None where it is not to be had."""
    try:
        choice = native.is_wanted()
        if choice is False:
            return None
        if choice:
            native.build()
        return native.load()
    except (MemprofError, ImportError) as error:
        note("native", str(getattr(error, "message", error)), getattr(error, "hint", ""))
        return None


def _cpu_source(
    options: Options,
    interner: Interner,
    loop_watch: LoopWatch,
    part: Any,
    note: Callable[[str, str, str], None],
) -> EventSource:
    """The allocator itself where the native part is built, else a dispatch mode."""
    if part is None or not _can_follow(part, note):
        from memprof.sources.cpu.dispatch_source import CpuSource

        return CpuSource(interner, loop_watch, beside_cuda=options.names_cpu)
    from memprof.sources.cpu.allocator_source import CpuAllocatorSource

    return CpuAllocatorSource(interner, loop_watch, part)


def _can_follow(part: Any, note: Callable[[str, str, str], None]) -> bool:
    """Whether torch's CPU allocator can be listened to; why not is noted."""
    try:
        part.cpu_start()
    except RuntimeError as error:
        note("native", f"the CPU is watched without the native part: {error}", "")
        return False
    part.cpu_stop()
    return True


def _cuda_source(interner: Interner, loop_watch: LoopWatch, part: Any) -> EventSource:
    """The recorder's entries as they happen where the native part has them, else snapshots."""
    # Imported here: where there is no CUDA they would cost 10 ms of a recording's start.
    if part is None or not hasattr(part, "cuda_attach"):
        from memprof.sources.cuda.source_with_owners import OwnedCudaSource

        return OwnedCudaSource(interner, loop_watch)
    from memprof.sources.cuda.allocator_source import CudaAllocatorSource

    return CudaAllocatorSource(interner, loop_watch, part)


class Ticks(Listener):
    """A listener that only wants to know that time passes.

    At a backward pass events are being labelled, and nothing may be drained; after a forward pass
    the next call or the optimizer comes soon.
    """

    is_metered = True
    """What a tick takes is measured by whoever is told."""

    def __init__(self, tick: Callable[[], None], training: Callable[[], None]) -> None:
        """``training`` is called instead of ``tick`` when an optimizer begins to step."""
        self._tick, self._training = tick, training

    def optimizer_begins(self, optimizer: Any) -> None:  # noqa: ARG002
        """Time has passed, and the program trains."""
        self._training()

    def outermost_call(self, module: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        """Time has passed."""
        self._tick()
