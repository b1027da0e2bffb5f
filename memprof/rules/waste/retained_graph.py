"""retained-graph: activations stay after the step's last backward pass, until the next step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.graph_lines import retaining
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.trace import EMPTY, Category, Frame, Phase
from memprof.units import format_bytes
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE"]

_LEAST_MODULES = 3
"""Modules whose activations stay: fewer are a result that is kept, and no graph."""


@dataclass(frozen=True, slots=True, eq=False)
class Retained(Match):
    """Graphs that backward passes went through and did not free."""

    called_at: Frame | None = None
    """The user's line that ran the last of these passes; None where no stack of them has one."""


class RetainedGraph(WasteRule[Retained]):
    """`retain_graph=True`, or an output with its graph, keeps a graph that was gone through."""

    name = "retained-graph"
    summary = "activations outlive the backward pass that needed them"
    fixes = ("no_retain_graph", "del_ref")
    names_holders = True

    def matches(self, window: Window) -> Iterator[Retained]:
        """Activations that outlive the step's last backward pass, to be freed in the next step."""
        lives = window.lives
        ends = {step: int(events[-1]) for step, events in _by_step(window, Phase.BACKWARD)}
        activation = np.flatnonzero(
            (window.category == Category.ACTIVATION) & (window.made_in >= 0)
        )
        last = np.array([ends.get(int(s), -1) for s in window.made_in[activation]], dtype=np.int64)
        over = (last >= 0) & (lives.free[activation] > last)
        over &= _until_replaced(window, activation)
        modules = window.module[activation]
        if len(set(modules[over].tolist()) - {0}) < _LEAST_MODULES:
            return
        rows, at = activation[over], last[over]
        saving = window.replayed(window.ended_at(rows, at))
        mask = np.zeros(len(lives), dtype=bool)
        mask[rows] = True
        yield Retained(
            row=window.main_site(mask),
            rows=rows,
            nbytes=window.bytes_of(mask & window.at_peak) or saving.bytes,
            saving=saving,
            called_at=_called_at(window, np.unique(at)),
        )

    def title(self, match: Retained) -> str:  # noqa: ARG002 - every match reads the same
        """Say how long they stay."""
        return (
            "are activations that stay after the backward pass, until the next step replaces them"
        )

    def advice(self, match: Retained, case: Case) -> Iterator[Advice]:
        """Let the backward pass free the graph, else drop what holds it."""
        frame = match.called_at
        calling = case.place_at(frame.filename, frame.line) if frame is not None else None
        requests = list(retaining(case, *([calling] if calling is not None else [])))
        nbytes = format_bytes(match.nbytes)
        why = f"{nbytes} of activations outlive the backward pass, held by the loss or the output."
        dropped = Advice("del_ref", why, case.site)
        # Where a loop goes through the graph again, it is to be dropped, not to be freed.
        yield from (
            [*requests, dropped] if any(one.patch for one in requests) else [dropped, *requests]
        )


def _until_replaced(window: Window, rows: Ints) -> Bools:
    """Whether each is freed in the next step; or, where a step ends early, before one more begins.

    What a program does after its optimizer has stepped is often the next step's.
    """
    forward = {step: int(events[0]) for step, events in _by_step(window, Phase.FORWARD)}
    made_in, freed_in, free = (
        column[rows] for column in (window.made_in, window.freed_in, window.lives.free)
    )
    last = window.events
    again = np.array([forward.get(int(step) + 2, last) for step in made_in], dtype=np.int64)
    replaced: Bools = (freed_in == made_in + 1) | ((freed_in == made_in + 2) & (free < again))
    return replaced


def _by_step(window: Window, phase: Phase) -> Iterator[tuple[int, Ints]]:
    """Every step with events of a phase, and those events."""
    events = np.flatnonzero(window.phase_of_event == phase)
    steps = window.step_of_event[events]
    edges = np.flatnonzero(np.diff(steps)) + 1
    for part in np.split(events, edges) if len(events) else ():
        yield int(window.step_of_event[part[0]]), part


def _called_at(window: Window, until: Ints) -> Frame | None:
    """The user's innermost line of the backward passes that end with some events.

    What comes last in a pass is often freed by it, and only what is made has a stack.
    """
    events = np.flatnonzero(window.phase_of_event == Phase.BACKWARD)
    stacks = window.trace.events.stack[events]
    events, stacks = events[stacks != EMPTY], stacks[stacks != EMPTY]
    last = np.searchsorted(events, until, side="right") - 1
    for stack in np.unique(stacks[last[last >= 0]]).tolist():
        frames = window.user_frames(window.trace.stack(stack))
        if frames:
            return frames[0]
    return None


RULE = RetainedGraph()
