"""Allocator settings that are worth a try on a recording, and what it has of them already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from memprof.allocator import (
    AllocatorSettings,
    inferred_settings,
    parse_settings,
    recorded_settings,
)
from memprof.trace import Trace

__all__ = ["SEARCHED", "brings", "untried"]

SEARCHED = (
    "expandable_segments:True",
    "max_split_size_mb:64",
    "max_split_size_mb:128",
    "max_split_size_mb:256",
    "max_split_size_mb:512",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    "roundup_power2_divisions:16",
    "max_split_size_mb:256,roundup_power2_divisions:8",
    "large_segment_size_mb:64",
    "expandable_segments:True,roundup_power2_divisions:16",
)
"""Configurations in torch's grammar that a search tries."""


def untried(traces: Sequence[Trace]) -> list[str]:
    """Those of `SEARCHED` that bring something to every one of ``traces``."""
    return [text for text in SEARCHED if brings(parse_settings(text), traces)]


def brings(settings: AllocatorSettings, traces: Sequence[Trace]) -> bool:
    """Whether ``settings`` set an option that none of ``traces`` has already.

    One that only takes options away brings nothing. A recording has what its file says and what its
    segments show: on a system where expandable segments are of no effect the two differ, and to
    switch them on once more changes nothing.
    """
    default = AllocatorSettings()
    had = [of(trace) for trace in traces for of in (_version_settings, inferred_settings)]
    return any(
        getattr(settings, field.name) != getattr(default, field.name)
        and all(getattr(settings, field.name) != getattr(one, field.name) for one in had)
        for field in fields(settings)
    )


def _version_settings(trace: Trace) -> AllocatorSettings:
    return recorded_settings(trace.settings)
