"""Warnings that a device will be full: early enough to save a checkpoint, and few of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from memprof.record.process import now_us
from memprof.records import Finding

if TYPE_CHECKING:
    from memprof.views.time_to_full import TimeToFull

__all__ = ["FullWarnings"]

_SOON_US = 7 * 24 * 3600 * 1_000_000
"""What is farther off than a week is for the report to say."""
_AGAIN = 4
"""A device is warned of again when a quarter is left of what was left the last time."""


class FullWarnings:
    """Says for each device once that it fills up, and again when much of the time has gone by."""

    def __init__(self) -> None:
        self._steps_left: dict[str, int] = {}

    def due(self, estimates: Iterable[TimeToFull]) -> Iterator[tuple[Finding, str]]:
        """The findings to tell now, each with its words for the log."""
        for one in estimates:
            steps_left_before = self._steps_left.get(one.device)
            if one.left_us > _SOON_US or (
                steps_left_before is not None and one.steps_left * _AGAIN > steps_left_before
            ):
                continue
            self._steps_left[one.device] = one.steps_left
            yield _finding(one), f"{one}: save a checkpoint before"


def _finding(one: TimeToFull) -> Finding:
    return Finding(
        "time_to_full",
        device=one.device,
        step=one.last_step,
        time_us=now_us(),
        bytes=one.free_bytes,
        details={
            "full_step": one.full_step,
            "left_us": one.left_us,
            "exact": one.exact,
            "bytes_per_step": round(one.bytes_per_step),
        },
    )
