"""How many of a run's steps were recorded with every allocation, and what ended that."""

from __future__ import annotations

from memprof.run import Run, Steps
from memprof.trace import NOT_RECORDED
from memprof.units import format_count

__all__ = ["in_words", "recorded_steps", "why_no_more"]

_LIMITS = {
    "allowance": "the allowance was used up; raise --allowance",
    "reserve": "the allowance was used up, but for what is kept for training; raise --allowance",
    "max_events": "the file held as many events as a window may have; raise --max-events",
    "max_bytes": "the file was as large as a window may make it; raise --max-bytes",
    "tables": "memprof's own tables were full",
}
"""What ended a window, as its record names it."""


def recorded_steps(steps: Steps) -> tuple[int, int]:
    """Steps that a window recorded to their end, and all steps."""
    length = steps.last - steps.first + 1
    return int(length[steps.window != NOT_RECORDED].sum()), int(length.sum())


def why_no_more(run: Run) -> str:
    """Which limit ended the first window that one has ended; empty where none did."""
    reasons = (_LIMITS.get(window.end, "") for window in run.windows)
    return next(filter(None, reasons), "")


def in_words(recorded_count: int, total: int, run: Run) -> str:
    """``2 of 60 steps were recorded, then the allowance was used up; raise --allowance``."""
    why = why_no_more(run)
    are = "was" if recorded_count == 1 else "were"
    sentence = f"{format_count(recorded_count)} of {format_count(total)} steps {are} recorded"
    return f"{sentence}, then {why}" if why else sentence
