"""retained-graph: activations stay after the step's last backward pass, until the next step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from memprof.rules.case import Case
from memprof.rules.graph_lines import retaining
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.trace import Category, Phase
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]

_LEAST_MODULES = 3
"""Modules whose activations stay: fewer are a result that is kept, and no graph."""


class RetainedGraph(WasteRule[Match]):
    """`retain_graph=True`, or an output with its graph, keeps a graph that was gone through."""

    name = "retained-graph"
    summary = "activations outlive the backward pass that needed them"
    fixes = ("no_retain_graph", "del_ref")
    names_holders = True

    def matches(self, window: Window) -> Iterator[Match]:
        """Activations that outlive the step's last backward pass, to be freed in the next step."""
        lives = window.lives
        ends: dict[int, int] = {}
        for event in np.flatnonzero(window.phase_of_event == Phase.BACKWARD).tolist():
            ends[int(window.step_of_event[event])] = event
        activation = np.flatnonzero(
            (window.category == Category.ACTIVATION) & (window.made_in >= 0)
        )
        last = np.array([ends.get(int(s), -1) for s in window.made_in[activation]], dtype=np.int64)
        over = (last >= 0) & (lives.free[activation] > last)
        over &= window.freed_in[activation] == window.made_in[activation] + 1
        modules = window.module[activation]
        if len(set(modules[over].tolist()) - {0}) < _LEAST_MODULES:
            return
        rows, at = activation[over], last[over]
        saving = window.replayed(window.ended_at(rows, at))
        mask = np.zeros(len(lives), dtype=bool)
        mask[rows] = True
        yield Match(
            row=window.main_site(mask),
            rows=rows,
            nbytes=window.bytes_of(mask & window.at_peak) or saving.bytes,
            saving=saving,
        )

    def title(self, match: Match) -> str:  # noqa: ARG002 - every match reads the same
        """Say how long they stay."""
        return (
            "are activations that stay after the backward pass, until the next step replaces them"
        )

    def advice(self, match: Match, case: Case) -> Iterator[Advice]:
        """Let the backward pass free the graph, else drop what holds it."""
        requests = list(retaining(case))
        nbytes = format_bytes(match.nbytes)
        why = f"{nbytes} of activations outlive the backward pass, held by the loss or the output."
        dropped = Advice("del_ref", why, case.site)
        # Where a loop goes through the graph again, it is to be dropped, not to be freed.
        yield from (
            [*requests, dropped] if any(one.patch for one in requests) else [dropped, *requests]
        )


RULE = RetainedGraph()
