"""evaluation-graph: a forward pass keeps its activations for a backward pass that never comes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from memprof.rules.case import Case
from memprof.rules.forward_passes import runs_within
from memprof.rules.graph_lines import under_no_grad
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.torch_modes import without_gradients
from memprof.trace import Action, Phase
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]

_LEAST_MODULES = 3
"""Modules that keep something: fewer are a result that is used, and no graph."""
_LEAST_KEPT = 0.4
"""Of the bytes that a forward pass makes: with gradients on, most are there when it ends."""


class EvaluationGraph(WasteRule[Match]):
    """An evaluation with gradients on: modules save what a backward pass would need."""

    name = "evaluation-graph"
    summary = "a forward pass without a backward pass keeps its activations"
    fixes = ("no_grad", "inference_mode")

    def matches(self, window: Window) -> Iterator[Match]:
        """Forward passes with gradients on, which no backward pass follows before the next."""
        lives = window.lives
        graph_rows: list[int] = []
        ends: list[int] = []
        brief = window.freed_in - window.made_in < 2  # else it is a cache, or kept on purpose
        for first, last in _unused_forwards(window):
            low, high = np.searchsorted(lives.alloc, [first, last + 1])  # rows are in this order
            rows = np.arange(low, high)
            alive = (lives.free[rows] > last) & ~window.has_owner[rows] & brief[rows]
            pass_bytes = int(lives.size[rows].sum())
            rows = rows[alive]
            if len(set(window.module[rows].tolist()) - {0}) < _LEAST_MODULES:
                continue
            if lives.size[rows].sum() < _LEAST_KEPT * pass_bytes:
                continue  # results of several modules, and nothing of what lies between them
            if without_gradients(window.stack(int(rows[0]))):
                continue
            after = np.append(lives.alloc[rows[1:]], last)
            output = len(rows) - 1
            graph_rows += rows[:output].tolist()
            ends += after[:output].tolist()
        if not graph_rows:
            return
        rows = np.array(graph_rows, dtype=np.int64)
        saving = window.replayed(window.ended_at(rows, np.array(ends)))
        mask = np.zeros(len(lives), dtype=bool)
        mask[rows] = True
        at_peak = mask & window.at_peak
        yield Match(
            row=window.main_site(mask),
            rows=rows,
            nbytes=window.bytes_of(at_peak) or saving.bytes,
            saving=saving,
        )

    def title(self, match: Match) -> str:  # noqa: ARG002 - every match reads the same
        """Say what they wait for."""
        return "are activations that a forward pass keeps for a backward pass that never comes"

    def advice(self, match: Match, case: Case) -> Iterator[Advice]:
        """Run it under `no_grad`."""
        nbytes = format_bytes(match.nbytes)
        why = f"{nbytes} of activations wait for a backward pass that does not come."
        yield Advice("no_grad", why, case.site, patch=under_no_grad(case))
        more = f"{why} Inference mode saves a little more."
        yield Advice("inference_mode", more, case.site)


def _unused_forwards(window: Window) -> Iterator[tuple[int, int]]:
    """First and last event of forward passes that no backward pass follows before the next one."""
    in_module = np.array([bool(label.module) for label in window.trace.tables.labels])
    is_alloc = window.trace.events.action == Action.ALLOC
    backward = np.flatnonzero((window.phase_of_event == Phase.BACKWARD) & is_alloc)
    runs = [(first, last) for first, last, _ in runs_within(window, in_module)]
    for number, (first, last) in enumerate(runs):
        until = runs[number + 1][0] if number + 1 < len(runs) else window.events
        at = int(np.searchsorted(backward, last))
        if at == len(backward) or (backward[at] > until and not _follows(window, last)):
            yield first, last


def _follows(window: Window, event: int) -> bool:
    """Whether a backward pass comes later in the same step: the loss may be a sum of passes."""
    step = window.step_of_event[event]
    later = window.phase_of_event[event + 1 :][window.step_of_event[event + 1 : -1] == step]
    return bool((later == Phase.BACKWARD).any())


RULE = EvaluationGraph()
