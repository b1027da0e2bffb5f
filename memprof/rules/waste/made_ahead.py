"""made-ahead: all items of a list are made before a loop goes through it, once."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.lists_ahead import (
    ListAhead,
    collected_by,
    list_ahead,
    makes_at_once,
)
from memprof.source_code.program import Place, calls_in, place_of
from memprof.trace import EMPTY, Category, Phase
from memprof.units import format_bytes
from memprof.views.peak_without import Cuts
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.2
"""Of the peak."""
_STEP = "step"
_FEWEST = 3
"""Items: of two, one is there beside the next one in any case."""


@dataclass(frozen=True, slots=True, eq=False)
class MadeAhead(Match):
    """The list."""

    ahead: ListAhead | None = None


class MadeAheadRule(WasteRule[MadeAhead]):
    """`folds = make_folds(x, y)`, of copies, and then `for train, val in folds:`."""

    name = "made-ahead"
    summary = "all items of a list are made before a loop goes through it, once"
    fixes = ("yield_items",)
    yields_to = ("reduced-later", "waiting-results", "late-backward", "evaluation-graph")

    def matches(self, window: Window) -> Iterator[MadeAhead]:
        """Tensors at the peak that a loop made for such a list."""
        if window.peak.event < 0:
            return
        lives = window.lives
        there = window.at_peak & ~window.has_owner & (lives.stack != EMPTY)
        there &= window.category != Category.ACTIVATION  # it is there for a graph
        stacks, counts = np.unique(lives.stack[there], return_counts=True)
        found: dict[tuple[str, int], list[int]] = defaultdict(list)
        lists: dict[tuple[str, int], ListAhead] = {}
        for stack in stacks[counts >= _FEWEST].tolist():
            places = map(place_of, window.user_frames(window.trace.stack(stack)))
            ahead = list_ahead([place for place in places if place is not None])
            if ahead is not None:
                key = ahead.place.program.filename, ahead.place.line
                lists[key] = ahead
                found[key].append(stack)
        for key, of_list in found.items():
            alike = np.isin(lives.stack, of_list) & ~window.has_owner
            waiting, next_run = _wait_for(window, lists[key])
            alike &= waiting
            rows = np.flatnonzero(there & alike)
            nbytes = int(lives.size[rows].sum())
            if window.share(nbytes) < _LEAST_SHARE or _trains_maker(window, lists[key]):
                continue
            yield MadeAhead(
                row=window.largest(there & np.isin(lives.stack, of_list)),
                rows=rows,
                nbytes=nbytes,
                saving=window.replayed(_all_but_one(window, alike, next_run)),
                ahead=lists[key],
            )

    def title(self, match: MadeAhead) -> str:
        """Say what is done with it."""
        return f"are {len(match.rows)} tensors in a list that a loop goes through once"

    def advice(self, match: MadeAhead, case: Case) -> Iterator[Advice]:
        """Make them as the loop asks for them."""
        ahead = match.ahead
        assert ahead is not None
        loop = f"the loop in line {ahead.loop.line} needs one at a time"
        why = f"{format_bytes(match.nbytes)} are made before {loop}: {_instead(ahead)}"
        place = case.place_at(ahead.place.program.filename, ahead.place.line)
        yield Advice("yield_items", why, place or case.site)


def _trains_maker(window: Window, ahead: ListAhead) -> bool:
    """Whether the loop changes the model that makes the items: each would be another model's.

    A policy that collects what it is trained on, say.
    """
    loop = _events_of(window, ahead.loop.program.filename, _lines_of_body(ahead.loop))
    phases = set(np.unique(window.phase_of_event[loop]).tolist())
    # Plain SGD makes nothing as it steps.
    is_step = Phase.BACKWARD in phases and calls_in(ahead.loop.statement, _STEP)
    if Phase.OPTIMIZER not in phases and not is_step:
        return False
    names, labels = window.owners.module.names, window.trace.tables.labels
    trained = np.unique(window.module[window.category == Category.GRADIENT]).tolist()
    roots = {names[at].partition(".")[0] for at in trained} - {""}
    making = _events_of(window, ahead.place.program.filename, _lines_of_filling(ahead.place))
    modules = {labels[at].module for at in np.unique(window.trace.events.label[making]).tolist()}
    return any(one.partition(".")[0] in roots for one in modules)


def _lines_of_filling(place: Place) -> range:
    """The lines of the loop around a statement that fills a list; of a comprehension its own.

    Of a loop that makes the list in its head that head.
    """
    if isinstance(place.statement, ast.For):
        return range(place.line, place.statement.body[0].lineno)
    loop = place.loop if not makes_at_once(place.statement) else None
    return range(loop.lineno, (loop.end_lineno or loop.lineno) + 1) if loop else place.lines


def _instead(ahead: ListAhead) -> str:
    """What to do instead of filling the list."""
    collected = collected_by(ahead.place.statement)
    if collected and not ahead.function:
        return f"go through `{collected}` itself."
    how = "`yield` each item" if ahead.function else "make each item in that loop"
    return f"{how} instead of appending it."


def _wait_for(window: Window, ahead: ListAhead) -> tuple[Bools, Ints]:
    """Per lifetime: whether it was there when the loop ran next, as what a list holds is.

    What the making of an item needs besides is gone by then. And the event of that run. A loop that
    makes nothing, as one that works in place, is known by what is made between the two.
    """
    loop = ahead.loop
    runs = _events_of(window, loop.program.filename, _lines_of_body(loop))
    if not len(runs) and not ahead.function:
        between = range(ahead.place.lines.stop, loop.lines.stop)
        runs = _events_of(window, loop.program.filename, between)
    at = np.searchsorted(runs, window.lives.alloc)
    next_run: Ints = np.append(runs, window.events)[np.minimum(at, len(runs))]
    waiting: Bools = (window.lives.free > next_run) & (at < len(runs))
    return waiting, next_run


def _events_of(window: Window, filename: str, lines: range) -> Ints:
    """The events of which some lines of a file were on the way."""
    tables = window.trace.tables
    inside = {
        row
        for row, frame in enumerate(tables.frames)
        if frame.filename == filename and frame.line in lines
    }
    through = np.array([not inside.isdisjoint(stack) for stack in tables.stacks])
    return np.flatnonzero(through[window.trace.events.stack])


def _lines_of_body(loop: Place) -> range:
    """The lines of a loop without its head, which may make the list that it goes through."""
    assert isinstance(loop.statement, ast.For)
    return range(loop.statement.body[0].lineno, loop.lines.stop)


def _all_but_one(window: Window, alike: Bools, next_run: Ints) -> Cuts:
    """Of what each stack made for one run of the loop all but the largest: one is needed.

    The next largest is there while that one is made: a loop's variable has the last item until the
    next is bound to it.
    """
    lives = window.lives
    rows = np.flatnonzero(alike)
    order = np.lexsort((-lives.size[rows], next_run[rows], lives.stack[rows]))
    rows = rows[order]
    is_new = np.ones(len(rows), dtype=bool)
    is_new[1:] = (np.diff(lives.stack[rows]) != 0) | (np.diff(next_run[rows]) != 0)
    starts = np.flatnonzero(is_new)
    place = np.arange(len(rows)) - np.repeat(starts, np.diff(np.append(starts, len(rows))))
    second, others = rows[place == 1], window.whole(rows[place > 1])
    brief = window.ended_at(second, next_run[second])
    return Cuts.joined(others, brief)


RULE = MadeAheadRule()
