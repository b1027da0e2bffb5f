"""The sources that the options name, made; and a listener that only feels the time pass."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

from memprof.options import Options
from memprof.sources.boundaries import Boundaries
from memprof.sources.cpu import CpuSource
from memprof.sources.cudaowners import OwnedCudaSource
from memprof.sources.host import HostSource
from memprof.sources.nvml import NvmlSource
from memprof.sources.protocol import EventSource, Interner, ReadingSource

__all__ = ["Ticks", "event_sources", "reading_sources"]


def reading_sources(options: Options) -> list[ReadingSource]:
    """Those that the sampler reads."""
    made: list[ReadingSource] = []
    for source in options.sources:
        if source == "host":
            made.append(HostSource())
        elif source == "nvml":
            made.append(NvmlSource())
        elif not isinstance(source, str) and hasattr(source, "read"):
            made.append(cast("ReadingSource", source))
    return made


def event_sources(
    options: Options, interner: Interner, boundaries: Boundaries
) -> list[EventSource]:
    """Those that record allocations; torch is imported, and may be built without CUDA."""
    torch = sys.modules["torch"]
    made: list[EventSource] = []
    for source in options.sources:
        if source == "cpu":
            made.append(CpuSource(interner, boundaries, beside_cuda=options.names_cpu))
        elif source == "cuda" and torch.backends.cuda.is_built():
            made.append(OwnedCudaSource(interner, boundaries))
        elif not isinstance(source, str) and hasattr(source, "drain"):
            made.append(cast("EventSource", source))
    return made


class Ticks:
    """A listener on boundaries that only wants to know that time passes."""

    is_metered = True
    """What a tick takes is measured by whoever is told."""

    def __init__(self, tick: Callable[[], None]) -> None:
        self._tick = tick

    def backward_began(self) -> None:
        """Not looked at: events are being labelled, nothing may be drained now."""

    def backward_ended(self) -> None:
        """Not looked at, for the same reason."""

    def recompute_ended(self) -> None:
        """Not looked at."""

    def forward_ended(self, *, with_gradients: bool) -> None:
        """Not looked at: the next call or the optimizer comes soon."""

    def optimizer_begins(self, optimizer: Any) -> None:  # noqa: ARG002
        """Time has passed."""
        self._tick()

    def outermost_call(self, module: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG002
        """Time has passed."""
        self._tick()
