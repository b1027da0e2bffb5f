"""written-out: a function that torch has is written out, and each of its steps is kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memprof.rules.case import Case
from memprof.rules.made_in_calls import spared_by_one_function
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import place_of
from memprof.source_code.written_out import written_out
from memprof.trace import Phase
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak, that is spared."""
_SURE_SHARE = 0.2
"""The same for a headline: many programs write a small norm of their own."""


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
            rows = spared_by_one_function(
                window,
                {place.program.filename: function.lines},
                keeps_input=function.keeps_input,
            )
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


RULE = StepsWrittenOut()
