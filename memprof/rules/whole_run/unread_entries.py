"""unread-entries: items that are kept for a while have something that nothing reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.records import Finding
from memprof.rules.case import Case
from memprof.rules.finding import Kind
from memprof.rules.held_at_peak import HeldAtPeak, last_searches
from memprof.rules.rule import Advice
from memprof.rules.run_rule import RunRule
from memprof.rules.same_memory import ANY_GROWTH, Overlap
from memprof.rules.unread_fields import UnreadField, unread_field, unread_key
from memprof.source_code.program import with_imported
from memprof.trace import EMPTY
from memprof.units import format_bytes, format_percent
from memprof.views.examination import DeviceExamination, Examination
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak: what is less is not worth a change."""
_FEWEST_ITEMS = 4


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class UnreadEntries(HeldAtPeak):
    """Tensors that items keep, at the peak."""

    field: UnreadField


class UnreadEntriesOfItems(RunRule[UnreadEntries]):
    """`Rollout(tokens, logprobs, logits)`, of which an update reads tokens and logprobs."""

    name = "unread-entries"
    summary = "items that are kept for a while have something that nothing reads"
    fixes = ("del_ref",)
    kind = Kind.WASTE
    yields_to = (ANY_GROWTH,)
    overlap = Overlap.HOLDER

    def matches(self, examination: Examination) -> Iterator[UnreadEntries]:
        """What the searches in the job found to be held so, and is there at the peak."""
        for device in examination.devices:
            window = device.peak_window
            if window is None or not window.line.peak_allocated.bytes:
                continue
            programs = with_imported(window.programs)
            by_name: dict[tuple[str, str], list[tuple[Finding, UnreadField]]] = {}
            for search in last_searches(examination, device):
                holder = search.holders[0]
                field = unread_field(holder, programs) or unread_key(holder, programs)
                if field is not None and (field.is_of_attribute or field.items >= _FEWEST_ITEMS):
                    by_name.setdefault((field.owner, field.name), []).append((search, field))
            for searches in by_name.values():
                match = _match(searches, device, window)
                if match is not None:
                    yield match

    def title(self, match: UnreadEntries) -> str:
        """Say how much it is, and whose."""
        share = format_percent(match.nbytes, match.peak)
        field = match.field
        size = format_bytes(match.nbytes)
        return f"{size} ({share} of the peak) are `{field.name}` of `{field.owner}`, never read"

    def advice(self, match: UnreadEntries, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the match says all
        """Leave it out."""
        yield match.field.advice


def _match(
    searches: Sequence[tuple[Finding, UnreadField]], device: DeviceExamination, window: Window
) -> UnreadEntries | None:
    rows = np.unique(
        np.concatenate([_rows(window, search, field.items) for search, field in searches])
    )
    there = rows[window.at_peak[rows]]
    nbytes = int(window.lives.size[there].sum())
    if window.share(nbytes) < _LEAST_SHARE:
        return None
    search, field = max(searches, key=lambda one: one[0].bytes)
    return UnreadEntries.of(device, window, search, there, rows, field=field)


def _rows(window: Window, search: Finding, items: int) -> Ints:
    """The tensors that a search was for: all of its stack; of those without, the ones of its size.

    Of tensors without a stack a search is for a group of one size, of which most items have one.
    """
    lives = window.lives
    of_stack = np.flatnonzero((lives.stack == search.stack) & ~window.has_owner)
    if search.stack != EMPTY:
        return of_stack
    there = of_stack[window.at_peak[of_stack]]
    for size in np.unique(lives.requested[there])[::-1].tolist():
        count, rest = divmod(search.bytes, size) if size else (0, 0)
        if not rest and 2 * count >= items:
            of_size: Ints = there[lives.requested[there] == size]
            return of_size
    return there[:0]


RULE = UnreadEntriesOfItems()
