"""queue-backlog: a queue without a bound is filled faster than it is emptied."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.records import Finding, Holder
from memprof.rules.case import Case
from memprof.rules.finding import Kind
from memprof.rules.queues import MOST_WAITING, bounded, queue_at, queue_made_at, queue_name
from memprof.rules.rule import Advice
from memprof.rules.run_rule import RunMatch, RunRule
from memprof.rules.same_memory import ANY_GROWTH, Overlap
from memprof.trace import EMPTY
from memprof.units import format_bytes, format_percent
from memprof.views.examination import DeviceExamination, Examination
from memprof.views.peak_without import Cuts, Saving, replayed
from memprof.views.sites import sites
from memprof.views.window import site_at

__all__ = ["RULE"]

_LEAST_ITEMS = 16
"""Items that wait: fewer are a bound that somebody may have in mind."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Backlog(RunMatch):
    """What waits at the peak in a queue that has no bound."""

    peak: int
    """Bytes."""
    name: str
    """By which the queue is known: an attribute or a variable."""
    items: int
    """That were seen in it."""


class QueueBacklog(RunRule[Backlog]):
    """`self.tasks = queue.Queue()`, cameras that put, and a model that is slower."""

    name = "queue-backlog"
    summary = "what waits in a queue without a bound adds up"
    fixes = ("bound_queue",)
    kind = Kind.WASTE
    yields_to = (ANY_GROWTH,)
    overlap = Overlap.LINE

    def matches(self, examination: Examination) -> Iterator[Backlog]:
        """The longest queue of each line that makes what waits in it at the peak."""
        for device in examination.devices:
            longest: dict[int, tuple[int, Finding, Holder, int]] = {}
            for finding in examination.run.findings:
                if finding.finding != "holders" or finding.device != device.name:
                    continue
                for holder in finding.holders[:1]:
                    at = queue_at(holder)
                    length = holder.links[at + 1].length if at is not None else 0
                    previous = longest.get(finding.stack)
                    if at is not None and (previous is None or length > previous[0]):
                        longest[finding.stack] = length, finding, holder, at
            for length, finding, holder, at in longest.values():
                match = _at_peak(device, finding, holder, at) if length >= _LEAST_ITEMS else None
                if match is not None:
                    yield match

    def title(self, match: Backlog) -> str:
        """Say how much waits, and where."""
        share = format_percent(match.nbytes, match.peak)
        return (
            f"{format_bytes(match.nbytes)} ({share} of the peak) wait in the queue `{match.name}`"
        )

    def advice(self, match: Backlog, case: Case) -> Iterator[Advice]:
        """Let what fills it wait."""
        holder = match.holders[0]
        place = queue_made_at(case, holder.links[: queue_at(holder)]) or case.place_of(holder)
        yield bounded(match.name, match.items, place, match.saving)


def _at_peak(
    device: DeviceExamination, finding: Finding, holder: Holder, at: int
) -> Backlog | None:
    window = max(device.windows, key=lambda one: int(one.line.allocated.max(initial=0)))
    line, lives = window.line, window.lives
    if finding.stack == EMPTY or not len(line.allocated):
        return None
    moment = int(line.allocated.argmax()) - 1
    mine = lives.stack == finding.stack
    rows = np.flatnonzero(mine & (lives.alloc <= moment) & (lives.free > moment))
    if len(rows) < _LEAST_ITEMS:
        return None
    # the first few pass through all the same
    waiting = np.flatnonzero(mine & (lives.alloc >= 0))[MOST_WAITING:]
    saving: Saving = replayed(line, Cuts.whole(line, waiting))
    tables = window.trace.tables
    places = sites(tables)
    return Backlog(
        device=device.name,
        nbytes=int(lives.size[rows].sum()),
        first_step=finding.step,
        last_step=finding.step,
        site=site_at(places.frames[int(places.of_stack[finding.stack])]),
        stack=tables.stack(finding.stack),
        holders=tuple(finding.holders),
        peak=device.peak_allocated,
        saving=saving,
        name=queue_name(holder.links[:at]),
        items=holder.links[at + 1].length,
    )


RULE = QueueBacklog()
