"""stored-views: a container with a bound is full of small views, and keeps their whole storages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memprof.chain_description import keeper
from memprof.records import Finding, Holder
from memprof.reference_chain import largest_container
from memprof.rules.case import Case
from memprof.rules.finding import Kind
from memprof.rules.held_at_peak import HeldAtPeak, last_searches
from memprof.rules.rule import Advice
from memprof.rules.run_rule import RunRule
from memprof.rules.same_memory import ANY_GROWTH, Overlap
from memprof.rules.small_views import (
    SMALL_PART,
    advice_on_view,
    alike,
    share_shown,
    small_view,
)
from memprof.trace import EMPTY
from memprof.units import format_bytes, format_percent
from memprof.views.examination import DeviceExamination, Examination
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak: what is less is not worth a change."""
_FEWEST_ITEMS = 8


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class StoredViews(HeldAtPeak):
    """Storages of which somebody keeps a small view each."""


class ViewsInContainer(RunRule[StoredViews]):
    """The hardest sample of each of the last 64 batches, as a view of its batch."""

    name = "stored-views"
    summary = "a container is full of small views, and keeps their whole storages"
    fixes = ("clone_view",)
    kind = Kind.WASTE
    yields_to = (ANY_GROWTH,)
    overlap = Overlap.HOLDER

    def matches(self, examination: Examination) -> Iterator[StoredViews]:
        """The line whose storages a container's small views keep most of, on each device."""
        for device in examination.devices:
            window = device.peak_window
            if window is None or not window.line.peak_allocated.bytes:
                continue
            of_searches = [_match(one, device, window) for one in _searches(examination, device)]
            matches = [one for one in of_searches if one is not None]
            if matches:
                yield max(matches, key=lambda one: one.nbytes)

    def title(self, match: StoredViews) -> str:
        """Say how much it is, and what holds it."""
        share = format_percent(match.nbytes, match.peak)
        by = keeper(match.holders[0].links, match.holders[0].kind)
        return f"{format_bytes(match.nbytes)} ({share} of the peak) are kept for small parts: {by}"

    def advice(self, match: StoredViews, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - of the case
        """Store a clone of the part."""
        part = small_view(case)
        if part is not None:
            yield from advice_on_view(part, case)


def _searches(examination: Examination, device: DeviceExamination) -> list[Finding]:
    """The last search for each stack that came upon a small view."""
    searches = last_searches(examination, device)
    return [one for one in searches if one.stack != EMPTY and _has_items(one.holders[0])]


def _has_items(holder: Holder) -> bool:
    """Whether a container with enough items holds what is looked for."""
    at = largest_container(holder.links)
    return at is not None and holder.links[at].length >= _FEWEST_ITEMS


def _that_stay(window: Window, of_stack: NDArray[np.bool_]) -> Ints:
    """Those that are still there when the second after them is made, or two steps later.

    A whole loop may be part of one step, before the training or after it, from which none lives on.
    """
    lives, rows = window.lives, np.flatnonzero(of_stack)
    rows = rows[np.argsort(lives.alloc[rows], kind="stable")]
    second_after = np.append(lives.alloc[rows[2:]], [window.events] * min(2, len(rows)))
    overlaps = lives.free[rows] > second_after
    lasts = window.freed_in[rows] - window.made_in[rows] > 1
    return np.sort(rows[overlaps | lasts])


def _match(search: Finding, device: DeviceExamination, window: Window) -> StoredViews | None:
    lives = window.lives
    holder = search.holders[0]
    of_stack = (lives.stack == search.stack) & alike(holder, lives.size)
    there = of_stack & window.at_peak
    nbytes = window.bytes_of(there)
    if window.share(nbytes) < _LEAST_SHARE or share_shown(holder, lives.size[there]) > SMALL_PART:
        return None
    if int(there.sum()) < _FEWEST_ITEMS:
        return None
    rows = _that_stay(window, of_stack)
    return StoredViews.of(device, window, search, np.flatnonzero(there), rows)


RULE = ViewsInContainer()
