"""endless-cache: a cache that outlives its calls is filled up to the end of a run without steps."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.chain_description import keeper
from memprof.records import Finding
from memprof.reference_chain import LinkKind, is_bounded
from memprof.rules.finding import Kind
from memprof.rules.resident_searches import resident_searches
from memprof.rules.run_rule import RunMatch, RunRule
from memprof.rules.same_holder import holder_key
from memprof.units import format_bytes, format_count
from memprof.views.examination import DeviceExamination, Examination
from memprof.views.sites import short_path
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_OUTLIVES_CALLS = frozenset(
    (LinkKind.LRU_CACHE, LinkKind.CLASS_ATTRIBUTE, LinkKind.DEFAULT_ARGUMENT)
)
"""What calls fill and none of them keeps. A list of results in a variable may be meant."""
_LEAST_SHARE = 0.15
"""Of the peak, for each of the lines that make its entries."""
_LEAST_TOGETHER = 0.3
"""Of the peak, for all of them: most of what such a program has is what it works on."""
_FEWEST = 32
"""Entries: fewer may be all that there will ever be."""
_LEAST_OF_QUARTER = 0.1
"""Of the entries, that each quarter of the recording has added: a table that is full has not."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class FilledCache(RunMatch):
    """The line that makes its entries, and how many it made."""

    count: int
    shown_line: str
    """``solver.py:52``."""


class EndlessCache(RunRule[FilledCache]):
    """`@lru_cache(maxsize=None)` of a function of a time, in an integrator that calls no module."""

    name = "endless-cache"
    summary = "a cache is filled up to the end, in a program of which no steps are known"
    kind = Kind.LEAK

    def matches(self, examination: Examination) -> Iterator[FilledCache]:
        """The caches that a search at the end came upon, whose entries came one by one."""
        for device in examination.devices:
            window = device.peak_window
            if window is None or len(device.device.steps) > 1:
                continue
            by_cache: dict[tuple[Hashable, ...], list[Finding]] = {}
            for one in resident_searches(examination, device, _LEAST_SHARE):
                holder = one.holders[0]
                kinds = {link.kind for link in holder.links}
                if kinds & _OUTLIVES_CALLS and not is_bounded(holder.links):
                    by_cache.setdefault(holder_key(holder), []).append(one)
            for searches in by_cache.values():
                match = _match(searches, device, window)
                if match is not None:
                    yield match

    def title(self, match: FilledCache) -> str:
        """Say by how much it grows at a run of the line, and what keeps it."""
        each = format_bytes(match.nbytes // match.count)
        times = format_count(match.count)
        by = keeper(match.holders[0].links, match.holders[0].kind)
        return f"grows by {each} each time {match.shown_line} runs ({times} times): {by}"


def _match(
    searches: Sequence[Finding], device: DeviceExamination, window: Window
) -> FilledCache | None:
    """The cache with what its lines made; None where it may be full, or holds too little."""
    stacks = list({one.stack for one in searches})
    made = np.flatnonzero(np.isin(window.lives.stack, stacks) & (window.lives.alloc >= 0))
    kept_rows = made[window.lives.free[made] >= window.events]
    nbytes = int(window.lives.size[kept_rows].sum())
    if len(kept_rows) < _FEWEST or nbytes < _LEAST_TOGETHER * device.peak_allocated:
        return None
    if not _goes_on(window, kept_rows):
        return None
    row = int(kept_rows[0])
    site = window.site_of(row)
    return FilledCache(
        device=device.name,
        nbytes=nbytes,
        site=site,
        stack=window.stack(row),
        holders=tuple(searches[0].holders),
        count=len(kept_rows),
        shown_line=f"{short_path(site.filename)}:{site.line}",
    )


def _goes_on(window: Window, rows: Ints) -> bool:
    """Whether each quarter of the recording has added to some lifetimes."""
    quarter = window.lives.alloc[rows] * 4 // max(1, window.events)
    return bool((np.bincount(quarter, minlength=4) >= _LEAST_OF_QUARTER * len(rows)).all())


RULE = EndlessCache()
