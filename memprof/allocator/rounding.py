"""From the bytes that are asked for to the bytes of a block, and of a segment.

Constants and rules are those of torch's ``c10/core/AllocatorConfig.h`` and of ``round_size`` and
``get_allocation_size`` in ``CUDACachingAllocator.cpp`` (the same from torch 2.0 to 2.15).
"""

from __future__ import annotations

from memprof.allocator.settings import INTERVALS, MIB, AllocatorSettings

__all__ = [
    "LARGE_ALIGNMENT",
    "MIN_BLOCK",
    "SMALL_SEGMENT",
    "SMALL_SIZE",
    "round_size",
    "segment_size",
]

MIN_BLOCK = 512
SMALL_SIZE = MIB
"""The largest block (after rounding) that comes from the small pool."""
SMALL_SEGMENT = 2 * MIB
LARGE_ALIGNMENT = 2 * MIB
_MIN_LARGE = 10 * MIB


def round_size(requested: int, divisions: tuple[int, ...]) -> int:
    """Bytes of the block for ``requested`` bytes, under ``roundup_power2_divisions``."""
    if requested < MIN_BLOCK:
        return MIN_BLOCK
    interval = min(max(requested.bit_length() - 21, 0), INTERVALS - 1)
    parts = divisions[interval]
    if parts > 1 and requested > MIN_BLOCK * parts:
        return _round_to_division(requested, parts)
    return (requested + MIN_BLOCK - 1) & -MIN_BLOCK


def _round_to_division(requested: int, parts: int) -> int:
    floor = 1 << (requested.bit_length() - 1)
    if floor == requested:
        return requested
    step = floor >> (parts.bit_length() - 1)
    if step == 0:
        return floor << 1
    return (requested + step - 1) & -step


def segment_size(rounded: int, settings: AllocatorSettings) -> int:
    """Bytes asked of the driver when no free block fits a block of ``rounded`` bytes."""
    if rounded <= SMALL_SIZE:
        return SMALL_SEGMENT
    if rounded < _MIN_LARGE:
        return settings.large_segment_size
    return (rounded + LARGE_ALIGNMENT - 1) & -LARGE_ALIGNMENT
