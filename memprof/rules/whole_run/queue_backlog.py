"""queue-backlog: a queue without a bound is filled faster than it is emptied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from memprof.records import Finding, Holder
from memprof.rules.case import Case
from memprof.rules.finding import Kind
from memprof.rules.queues import (
    MOST_WAITING,
    bounded,
    queue_at,
    queue_filled_by,
    queue_made_at,
    queue_name,
)
from memprof.rules.rule import Advice
from memprof.rules.run_rule import RunMatch, RunRule
from memprof.rules.same_memory import ANY_GROWTH, Overlap
from memprof.source_code.program import Place, place_of
from memprof.trace import EMPTY
from memprof.units import format_bytes, format_percent
from memprof.views.examination import DeviceExamination, Examination
from memprof.views.peak_without import Cuts, Saving, replayed
from memprof.views.sites import sites
from memprof.views.window import Ints, Window, site_at

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
    """That were seen in it, or are there at the peak."""
    made_at: Place | None = None
    """Where the queue is made, if its name was found by what fills it."""


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
            if not device.windows:
                continue
            queues = _queues_seen(examination, device)
            yield from _held(device, queues) if queues else _drained(device)

    def title(self, match: Backlog) -> str:
        """Say how much waits, and where."""
        share = format_percent(match.nbytes, match.peak)
        return (
            f"{format_bytes(match.nbytes)} ({share} of the peak) wait in the queue `{match.name}`"
        )

    def advice(self, match: Backlog, case: Case) -> Iterator[Advice]:
        """Let what fills it wait."""
        if match.made_at is not None:
            yield bounded(match.name, match.items, match.made_at, match.saving)
            return
        holder = match.holders[0]
        place = queue_made_at(case, holder.links[: queue_at(holder)]) or case.place_of(holder)
        yield bounded(match.name, match.items, place, match.saving)


def _queues_seen(
    examination: Examination, device: DeviceExamination
) -> list[tuple[int, Finding, Holder, int]]:
    """What searches of the job found in a queue: of each line the longest, and its length."""
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
    return list(longest.values())


def _held(
    device: DeviceExamination, queues: Iterable[tuple[int, Finding, Holder, int]]
) -> Iterator[Backlog]:
    """The queues that were long, with what their line has at the peak."""
    window = _window_of_peak(device)
    for length, finding, holder, at in queues:
        if length < _LEAST_ITEMS or finding.stack == EMPTY:
            continue
        if len(_rows_at_peak(window, finding.stack)) >= _LEAST_ITEMS:
            match = _match(device, window, finding.stack, finding.step)
            name, items = queue_name(holder.links[:at]), holder.links[at + 1].length
            yield replace(match, holders=tuple(finding.holders), name=name, items=items)


def _drained(device: DeviceExamination) -> Iterator[Backlog]:
    """What is put into the only queue of the program, and goes step by step when no more comes."""
    window = _window_of_peak(device)
    rows_there, number = np.unique(window.lives.stack[window.at_peak], return_counts=True)
    for stack in rows_there[number >= _LEAST_ITEMS].tolist():
        rows = _rows_at_peak(window, stack)
        made = window.lives.alloc[(window.lives.stack == stack) & (window.lives.alloc >= 0)]
        last = int(made.max(initial=-1))
        later = window.lives.free[rows][window.lives.free[rows] > last]
        goes_in = np.unique(window.step_of_event[later[later < window.events]])
        if len(rows) < _LEAST_ITEMS or 2 * len(goes_in) < len(rows):
            continue
        places = map(place_of, window.user_frames(window.trace.stack(stack)))
        filled = (queue_filled_by(place, window.programs) for place in places if place is not None)
        queue = next(filter(None, filled), None)
        if queue is not None:
            made_at, name = queue
            match = _match(device, window, stack, int(window.made_in[rows[0]]))
            yield replace(match, name=name, items=len(rows), made_at=made_at)


def _window_of_peak(device: DeviceExamination) -> Window:
    return max(device.windows, key=lambda one: int(one.line.allocated.max(initial=0)))


def _moment(window: Window) -> int:
    """The event of the highest peak, that of the warm-up included."""
    return int(window.line.allocated.argmax()) - 1


def _rows_at_peak(window: Window, stack: int) -> Ints:
    lives, moment = window.lives, _moment(window)
    there = (lives.stack == stack) & (lives.alloc <= moment) & (lives.free > moment)
    rows: Ints = np.flatnonzero(there)
    return rows


def _match(device: DeviceExamination, window: Window, stack: int, step: int) -> Backlog:
    """What one line has in a queue at the peak, and the peak without it."""
    lives = window.lives
    # the first few pass through all the same
    waiting = np.flatnonzero((lives.stack == stack) & (lives.alloc >= 0))[MOST_WAITING:]
    saving: Saving = replayed(window.line, Cuts.whole(window.line, waiting))
    tables = window.trace.tables
    places = sites(tables)
    return Backlog(
        device=device.name,
        nbytes=int(lives.size[_rows_at_peak(window, stack)].sum()),
        first_step=step,
        last_step=step,
        site=site_at(places.frames[int(places.of_stack[stack])]),
        stack=tables.stack(stack),
        peak=device.peak_allocated,
        saving=saving,
        name="",
        items=0,
    )


RULE = QueueBacklog()
