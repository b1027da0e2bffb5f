"""written-out: a function that torch has is written out, and each of its steps is kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import place_of
from memprof.source_code.written_out import WrittenOut, written_out
from memprof.trace import Phase
from memprof.units import format_bytes
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak, that is spared."""
_SURE_SHARE = 0.2
"""The same for a headline: many programs write a small norm of their own."""
_LEAST_OF_LARGEST = 0.5
"""Of the largest that a call makes: a mean or a deviation for each row is smaller."""


@dataclass(frozen=True, slots=True, eq=False)
class Steps(Match):
    """What is kept of the steps, and the function that keeps less."""

    instead: str = ""


class StepsWrittenOut(WasteRule[Steps]):
    """`0.5 * x * (1 + torch.tanh(…))`: four tensors are kept where `F.gelu(x)` keeps one."""

    name = "written-out"
    summary = "a function that torch has is written out, and each of its steps is kept"
    fixes = ("one_function",)
    other_operators = True

    def matches(self, window: Window) -> Iterator[Steps]:
        """Results of such lines that wait for the backward pass, but for the last of each call."""
        if window.peak.event < 0:
            return
        waiting = (window.freed_by == Phase.BACKWARD) & ~window.has_owner
        waiting &= (window.phase != Phase.BACKWARD) & (window.lives.alloc >= 0)
        done: set[int] = set()
        for site in window.large_sites(waiting & window.at_peak, _LEAST_SHARE):
            place = place_of(window.owners.sites.frames[site])
            function = written_out(place) if place is not None else None
            if place is None or function is None or id(function) in done:
                continue
            done.add(id(function))
            rows = _spared(window, place.program.filename, waiting, function)
            there = rows[window.at_peak[rows]]
            if not len(there):
                continue
            saving = window.replayed(window.whole(rows))
            share = window.share(saving.bytes)
            if share < _LEAST_SHARE:
                continue
            yield Steps(
                row=int(there[window.lives.size[there].argmax()]),
                rows=there,
                nbytes=int(window.lives.size[there].sum()),
                saving=saving,
                tentative=share < _SURE_SHARE,
                instead=function.instead,
            )

    def title(self, match: Steps) -> str:
        """Say what keeps less."""
        return f"are steps of what `{match.instead}` computes at once, kept for the backward pass"

    def advice(self, match: Steps, case: Case) -> Iterator[Advice]:
        """Call the function."""
        why = (
            f"Autograd keeps what each operator here needs, {format_bytes(match.nbytes)}: one "
            "function of torch computes all of it and keeps its input alone."
        )
        yield Advice("one_function", why, case.site, typed=match.instead)


def _on_lines(window: Window, filename: str, lines: frozenset[int], site: Ints) -> Bools:
    """Which lifetimes are of the lines of a file, by their sites."""
    frames = window.owners.sites.frames
    on = np.array([frame.filename == filename and frame.line in lines for frame in frames])
    made: Bools = on[site] & (window.lives.alloc >= 0)
    return made


def _spared(window: Window, filename: str, waiting: Bools, function: WrittenOut) -> Ints:
    """What would not be made or not be kept: all but the result and the gradient of each call."""
    lines = function.lines
    is_backward = window.phase == Phase.BACKWARD
    results = _but_last(window, _on_lines(window, filename, lines, window.site) & ~is_backward)
    rows, call = results
    waits = waiting[rows]
    rows, call = rows[waits], call[waits]
    if not function.keeps_input and len(rows):  # then the function does, in place of one step
        rows = rows[~np.concatenate([[True], call[1:] != call[:-1]])]
    of_backward = _on_lines(window, filename, lines, window.origin_site) & is_backward
    gradients, _ = _but_last(window, of_backward)
    return np.concatenate([rows, gradients])


def _but_last(window: Window, made: Bools) -> tuple[Ints, Ints]:
    """All that each call makes but for the last, and the number of its call.

    A call is what the lines make one after another. What is smaller, as a mean or a deviation for
    each row, is left out.
    """
    lives = window.lives
    order = np.argsort(lives.alloc, kind="stable")
    order = order[lives.alloc[order] >= 0]
    is_made = made[order]
    rows = order[is_made]
    if not len(rows):
        return rows, rows
    starts = is_made & ~np.concatenate([[False], is_made[:-1]])
    call = np.cumsum(starts)[is_made] - 1
    largest = np.zeros(call[-1] + 1, dtype=np.int64)
    np.maximum.at(largest, call, lives.requested[rows])
    is_full = lives.requested[rows] >= _LEAST_OF_LARGEST * largest[call]
    rows, call = rows[is_full], call[is_full]
    is_last = np.append(call[1:] != call[:-1], [True])
    return rows[~is_last], call[~is_last]


RULE = StepsWrittenOut()
