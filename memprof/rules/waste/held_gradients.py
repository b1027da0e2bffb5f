"""held-gradients: gradients that are done with are there while a forward pass runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.gradients_by_hand import (
    gradients_filled,
    reads_gradients,
    sets_gradient_none,
)
from memprof.source_code.idioms import arguments_named, keyword
from memprof.source_code.patch import diff, without_keyword
from memprof.source_code.program import Program, calls_in
from memprof.trace import Category, Phase
from memprof.units import format_bytes
from memprof.views.peak_without import Cuts
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.2
"""Of the peak, from which they are a headline: to clear them between a loss and its backward pass
is what many programs do."""
_TO_NONE = "set_to_none"
_MOST_STEPS = 0.6
"""Share of the steps in which it must be so: an evaluation now and then is no habit."""


@dataclass(frozen=True, slots=True, eq=False)
class GradientsInTheWay(Match):
    """Gradients, and when they are in the way."""

    across_steps: bool = False
    """They are the last step's, in the next step's forward pass; else the same step's, whose
    backward pass is over when another forward pass (a validation) makes the peak."""


class HeldGradients(WasteRule[GradientsInTheWay]):
    """Gradients stay until the next `zero_grad`, and the activations come on top of them."""

    name = "held-gradients"
    summary = "gradients are still there while the next forward pass runs"
    fixes = ("set_to_none",)
    yields_to = ("unused-gradients",)

    def matches(self, window: Window) -> Iterator[GradientsInTheWay]:
        """Gradients of the step before in most steps, or of the same step at its peak."""
        yield from _of_the_step_before(window)
        yield from _of_the_same_step(window)

    def title(self, match: GradientsInTheWay) -> str:
        """Say which forward pass they are in the way of."""
        if match.across_steps:
            return "are gradients of the step before, there while the next forward pass runs"
        return "are gradients that the step is done with, there while another forward pass runs"

    def advice(self, match: GradientsInTheWay, case: Case) -> Iterator[Advice]:
        """Drop them right after the optimizer's step."""
        nbytes = format_bytes(match.nbytes)
        why = f"{nbytes} of gradients lie there while the forward pass builds its activations"
        scopes = [place.scope for _, place in case.frames]
        # Where gradients are made they are cleared as a rule: of several calls, those come first.
        calls = sorted(case.calls("zero_grad"), key=lambda one: one[1].scope not in scopes)
        for call, place in calls:
            if _fills(call, case.everywhere):
                yield Advice(
                    "set_to_none",
                    f"{why}: `set_to_none=False` fills them with zeros instead of dropping them.",
                    place,
                    patch=diff(place.program, without_keyword(call, "set_to_none")),
                )
                return
        for program in case.everywhere if _live_on(match, case) or not calls else ():
            for call, gradient in gradients_filled(program):
                text = ast.unparse(call)
                yield Advice(
                    "set_to_none",
                    f"{why}: `{text}` fills them with zeros instead of dropping them.",
                    program.place(call),
                    typed=f"{ast.unparse(gradient)} = None",
                )
                return
        if calls:
            late = f"{why}: call it right after the optimizer's step."
            yield Advice("set_to_none", late, calls[0][1])
            return
        none = f"{why}: nothing drops them; `zero_grad()` after the step."
        yield Advice("set_to_none", none, case.site)


def _live_on(match: GradientsInTheWay, case: Case) -> bool:
    """Whether the gradients live for steps on end: they are filled anew, and never dropped."""
    window = case.window
    if window is None or not match.across_steps:
        return False
    return float(np.median(window.freed_in[match.rows] - window.made_in[match.rows])) > 1


def _of_the_step_before(window: Window) -> Iterator[GradientsInTheWay]:
    """Gradients of earlier steps that are there when a forward pass ends, in most steps."""
    begins = _backward_begins(window)
    if len(begins) < 3 or _are_the_programs_own(window):
        return
    lives = window.lives
    crossing = window.freed_in > window.made_in  # the others cannot be there in a later step
    # Made elsewhere than in a backward pass it is a buffer that gradients are views of, and meant.
    crossing &= window.phase == Phase.BACKWARD
    gradients = np.flatnonzero((window.category == Category.GRADIENT) & crossing)
    if not len(gradients):
        return
    events_alive = np.zeros(len(gradients), dtype=np.int64)
    added_to = np.zeros(len(gradients), dtype=bool)
    ends = _forward_ends(window, begins)
    renewed = _renewals(window)
    rows, start, end = [], [], []
    for step, event in begins.items():
        before = lives.alloc[gradients] < window.first_event[step]
        alive = before & (lives.free[gradients] > ends[step])
        events_alive += alive
        added_to |= before & (lives.free[gradients] > event)
        there = gradients[alive]
        rows.append(there)
        start.append(np.full(len(there), window.first_event[step] - 1))
        keys = zip(window.module[there].tolist(), lives.requested[there].tolist(), strict=True)
        end.append(np.array([renewed.get((step, *key), event) for key in keys], dtype=np.int64))
    survivors = _regular(window, gradients, events_alive, len(begins), added_to)
    if not len(survivors):
        return
    cuts = Cuts(np.concatenate(rows), np.concatenate(start), np.concatenate(end))
    mask = np.zeros(len(lives), dtype=bool)
    mask[survivors] = True
    nbytes = window.bytes_of(mask & window.at_peak)
    if not nbytes:
        return  # they are in nobody's way: the peak comes after they are gone
    yield GradientsInTheWay(
        row=window.main_site(mask),
        rows=survivors,
        nbytes=nbytes,
        saving=window.replayed(cuts),
        tentative=_is_by_library(window, survivors)
        or (window.share(nbytes) < _LEAST_SHARE and not _are_filled(window)),
        across_steps=True,
    )


def _are_the_programs_own(window: Window) -> bool:
    """Whether the program clears no gradients and works with them by itself, as with momentum."""
    return not _clears(window) and any(map(reads_gradients, window.programs))


def _clears(window: Window) -> bool:
    """Whether the program's files clear gradients at all."""
    return any(
        calls_in(program.tree, "zero_grad", "zero_") or sets_gradient_none(program)
        for program in window.programs
    )


def _is_by_library(window: Window, gradients: Ints) -> bool:
    """Whether they go in the next step, and by no file of the program: in a framework's own order.

    Lightning clears them between a step's forward and backward pass.
    """
    age = window.freed_in[gradients] - window.made_in[gradients]
    return not _clears(window) and float(np.median(age)) <= 1


def _are_filled(window: Window) -> bool:
    """Whether the program asks for gradients to be filled with zeros: ``set_to_none=False``."""
    return any(
        _fills(call, window.programs)
        for program in window.programs
        for call in calls_in(program.tree, "zero_grad")
    )


def _fills(call: ast.Call, programs: Sequence[Program]) -> bool:
    """Whether a `zero_grad` is told to fill gradients, by name, by place, or by ``**options``."""
    given = [keyword(call, _TO_NONE), *call.args[:1]]
    if any(one.arg is None for one in call.keywords):
        given += [value for _, value in arguments_named(programs, _TO_NONE)]
    return any(isinstance(one, ast.Constant) and one.value is False for one in given)


def _of_the_same_step(window: Window) -> Iterator[GradientsInTheWay]:
    """Gradients that are done with when the peak comes, in a forward pass after the backward one.

    As in a validation at the end of a step, where `zero_grad` comes at the beginning of the next.
    """
    peak, lives = window.peak.event, window.lives
    if not window.is_phase(peak, Phase.FORWARD):
        return
    busy = np.isin(window.phase_of_event, [int(Phase.BACKWARD), int(Phase.OPTIMIZER)])
    steps, which = np.unique(window.step_of_event[:-1], return_inverse=True)
    last = np.full(len(steps), -1, dtype=np.int64)
    np.maximum.at(last, which.reshape(-1)[busy], np.flatnonzero(busy))
    step = int(window.step_of_event[peak])
    begins = _backward_begins(window)
    if not 0 <= last[np.searchsorted(steps, step)] < peak:
        step -= 1  # with its optimizer's step a step may be over, and what follows is of the next
        if not _drops_before_training(window, begins, step):
            return
    renewed = np.array([begins.get(int(s) + 1, window.events) for s in window.made_in])
    gradients = (window.category == Category.GRADIENT) & (window.phase == Phase.BACKWARD)
    rows = np.flatnonzero(gradients & (window.made_in >= 0) & (lives.free <= renewed))
    last_of = last[np.searchsorted(steps, window.made_in)]
    rows = rows[lives.free[rows] > last_of[rows]]
    at_peak = rows[window.at_peak[rows] & (window.made_in[rows] == step)]
    if not len(at_peak):
        return
    mask = np.zeros(len(lives), dtype=bool)
    mask[at_peak] = True
    yield GradientsInTheWay(
        row=window.main_site(mask),
        rows=rows,
        nbytes=window.bytes_of(mask),
        saving=window.replayed(window.ended_at(rows, last_of[rows])),
        across_steps=False,
    )


def _drops_before_training(window: Window, begins: dict[int, int], step: int) -> bool:
    """Whether a step's gradients are gone before the next training, as those of most steps are.

    They were in no way of that pass: what they were in the way of comes between the two.
    """
    lives, ends = window.lives, _forward_ends(window, begins)
    gradients = (window.category == Category.GRADIENT) & (window.phase == Phase.BACKWARD)
    dropped = {
        one: bool((lives.free[gradients & (window.made_in == one)] <= ends[one + 1]).all())
        for one in np.unique(window.made_in[gradients]).tolist()
        if one + 1 in ends
    }
    is_habit = sum(dropped.values()) >= _MOST_STEPS * len(dropped)
    return len(dropped) > 1 and is_habit and dropped.get(step, True)


def _backward_begins(window: Window) -> dict[int, int]:
    """The first event of the first backward pass of every step but the first."""
    by_step: dict[int, int] = {}
    for event in np.flatnonzero(window.phase_of_event == Phase.BACKWARD).tolist():
        by_step.setdefault(int(window.step_of_event[event]), event)
    first = min(by_step, default=0)
    return {step: event for step, event in by_step.items() if step > first}


def _forward_ends(window: Window, begins: dict[int, int]) -> dict[int, int]:
    """The last event in a module before the backward pass of each of these steps.

    Outside of modules the forward pass cannot be told from what follows it.
    """
    in_module = np.array([bool(label.module) for label in window.trace.tables.labels])
    forward = window.phase_of_event == Phase.FORWARD
    forward = np.flatnonzero(forward & in_module[window.trace.events.label])
    ends = {}
    for step, begin in begins.items():
        before = int(np.searchsorted(forward, begin))
        last = int(forward[before - 1]) if before else -1
        ends[step] = last if last >= window.first_event[step] else begin
    return ends


def _renewals(window: Window) -> dict[tuple[int, int, int], int]:
    """When a gradient's new value has been added to it, by step, module and bytes.

    Without the old gradient, the new value would have become the gradient itself.
    """
    lives = window.lives
    new = (window.phase == Phase.BACKWARD) & ~window.has_owner & (lives.free < window.events)
    rows = np.flatnonzero(new & (window.module > 0))
    keys = zip(
        window.made_in[rows].tolist(),
        window.module[rows].tolist(),
        lives.requested[rows].tolist(),
        strict=True,
    )
    return dict(zip(keys, lives.free[rows].tolist(), strict=True))


def _regular(
    window: Window, gradients: Ints, events_alive: Ints, steps: int, added_to: Bools
) -> Ints:
    """Gradients that are held in most steps: by one long life, or by a life in every step."""
    long = events_alive >= _MOST_STEPS * steps
    stacks = window.lives.stack[gradients]
    by_stack = np.bincount(stacks, weights=events_alive)
    every = window.lives.stack[window.category == Category.GRADIENT]
    allocs = np.bincount(every, minlength=len(by_stack))[: len(by_stack)]
    of_each_step = (events_alive > 0) & (by_stack >= _MOST_STEPS * allocs)[stacks]
    # Micro-batches: what a later backward pass added to and was then dropped is meant.
    to_the_end = (window.lives.free[gradients] == window.events) | (long & window.stays[gradients])
    is_accumulated: Bools = added_to & ~to_the_end
    regular: Ints = gradients[(long | of_each_step) & ~is_accumulated]
    return regular


RULE = HeldGradients()
