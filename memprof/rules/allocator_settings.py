"""Advice on the caching allocator's settings that leave fewer holes, tried by a replay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from memprof.allocator import parse_settings
from memprof.errors import MemprofError
from memprof.rules.case import Case
from memprof.rules.rule import Advice
from memprof.units import format_bytes
from memprof.views.peak_without import Saving
from memprof.what_if.candidate_settings import brings
from memprof.what_if.changed_run import replay

__all__ = ["MOST_EVENTS", "advice_on_settings"]

MOST_EVENTS = 200_000
"""A longer recording is replayed by `memprof what-if`, when someone asks."""
_LEAST_SHARE = 0.05
"""Of the reserved peak: a setting that saves less in the replay is not advised."""


class _Setting(NamedTuple):
    fix: str
    text: str
    """As ``PYTORCH_CUDA_ALLOC_CONF`` has it."""
    how: str
    """How it helps."""


_EXPANDABLE = _Setting(
    "expandable_segments",
    "expandable_segments:True",
    "expandable segments grow in place instead of leaving holes",
)
_WHOLE = _Setting(
    "max_split_size",
    "max_split_size_mb:128",
    "`max_split_size_mb:128` keeps large blocks whole",
)


def advice_on_settings(case: Case) -> Iterator[Advice]:
    """Settings that the recording does not have, unless a replay says that they do not help.

    Expandable segments come first. Where they are on, no other setting helps.
    """
    settings = _new_settings(case)
    replays = _replay(case, [one.text for one in settings])
    for one in settings:
        saving = replays.get(one.text)
        if saving is not None and saving.bytes < _LEAST_SHARE * saving.before:
            continue
        comparison = (
            f"; a replay reserves {format_bytes(saving.after)}" if saving is not None else ""
        )
        nbytes = format_bytes(case.finding.bytes)
        why = f"{nbytes} are reserved but unallocated: {one.how}{comparison}."
        yield Advice(one.fix, why, case.site, saving=saving)


def _new_settings(case: Case) -> list[_Setting]:
    both = [_EXPANDABLE, _WHOLE]
    if case.trace is None:
        return both
    new = [one for one in both if brings(parse_settings(one.text), [case.trace])]
    return new if _EXPANDABLE in new else []


def _replay(case: Case, settings: list[str]) -> dict[str, Saving]:
    """Peaks of reserved bytes, as recorded and under each of the settings, by a replay."""
    trace = case.trace
    if trace is None or not settings or not 0 < len(trace.events) <= MOST_EVENTS:
        return {}
    try:
        (answer,) = replay(trace, settings, workers=1)
    except MemprofError:  # a recording that cannot be replayed has no figure
        return {}
    peak_reserved = answer.rows[0].outcome.peak_reserved
    return {
        row.configuration: Saving(peak_reserved, row.outcome.peak_reserved)
        for row in answer.rows
        if row.configuration in settings
    }
