"""Which CUDA devices torch uses, by which allocator, and their UUIDs; never initialises CUDA."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

__all__ = ["COUNTING", "NATIVE", "USED", "UsedDevices", "backend", "used", "uuid_of"]

NATIVE = "native"
COUNTING = (NATIVE, "cudaMallocAsync", "rocm")
"""Allocators whose counters torch can read; with others the call raises, or nothing is counted."""


_READS_SWITCH = (2, 7)


def backend(torch: Any, environment: Mapping[str, str] = os.environ) -> str:
    """The allocator in use: as torch names it, or ``rocm``, or ``uncached`` (each has its limits).

    Since 2.7 torch reads the variable's value; before, that it is there was enough.
    """
    if getattr(getattr(torch, "version", None), "hip", None):
        return "rocm"
    switch = environment.get("PYTORCH_NO_CUDA_MEMORY_CACHING")
    if switch == "1" or (switch is not None and _version_of(torch) < _READS_SWITCH):
        return "uncached"
    return str(torch.cuda.get_allocator_backend())


def _version_of(torch: Any) -> tuple[int, ...]:
    """Such as ``(2, 11)``; of one that tells none, the newest."""
    parts = str(getattr(torch, "__version__", "")).split(".")[:2]
    is_number = len(parts) == 2 and all(part.isdecimal() for part in parts)
    return tuple(map(int, parts)) if is_number else _READS_SWITCH


class UsedDevices:
    """What a thread of the job last knew of the devices that torch has memory on.

    A thread that samples must not ask torch itself: torch keeps the interpreter's lock while it
    waits for the allocator's, which a retry before an out of memory error holds for seconds.
    """

    def __init__(self) -> None:
        self.uuids: Mapping[str, str] = {}
        """``"cuda:0"`` to the UUID; replaced, never changed."""

    def add(self, uuids: Mapping[str, str]) -> None:
        """Devices that came into use."""
        if not uuids.items() <= self.uuids.items():
            self.uuids = {**self.uuids, **uuids}

    def forget(self) -> None:
        """The recording is over."""
        self.uuids = {}


USED = UsedDevices()
"""Of this process."""


def used(torch: Any) -> list[int]:
    """Ordinals of the devices that this process has memory on; CUDA must be initialised.

    By torch's counters, or where the allocator has none by the driver's context of the process.
    """
    cuda = torch.cuda
    if backend(torch) in COUNTING:
        return [i for i in range(cuda.device_count()) if cuda.memory_reserved(i) > 0]
    has_context = getattr(torch._C, "_cuda_hasPrimaryContext", lambda _: True)
    return [i for i in range(cuda.device_count()) if has_context(i)]


def uuid_of(torch: Any, ordinal: int, environment: Mapping[str, str] = os.environ) -> str | None:
    """The UUID of a visible device, None where neither torch nor the environment tells it.

    For an instance of MIG the environment is asked first: depending on its version, CUDA gives the
    UUID of the whole card. (Only one instance is ever visible to a process, by its own name.)
    """
    names = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
    name = names[ordinal].strip() if ordinal < len(names) else ""
    if name.startswith("MIG-"):
        return name
    uuid = getattr(torch.cuda.get_device_properties(ordinal), "uuid", None)
    if uuid is not None:
        return str(uuid)
    return name if name.startswith("GPU-") else None
