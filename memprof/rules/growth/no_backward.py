"""no-backward: graphs are built and kept where nothing ever runs a backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.reference_chain import THROUGH_GRAPH
from memprof.rules.case import Case
from memprof.rules.finding import Kind
from memprof.rules.graph_lines import calling_place, none_meanwhile, under_no_grad
from memprof.rules.needless_graphs import without_graph
from memprof.rules.rule import EVERY_OTHER, Advice, Cause, GrowthRule
from memprof.rules.saving import survivors
from memprof.source_code.program import Place, calls_in
from memprof.source_code.torch_modes import without_gradients
from memprof.views.peak_without import Saving, replayed

__all__ = ["RULE"]

_MOSTLY = 0.5
"""Of the bytes, that stay without the graph."""
_LEAST_MODULES = 3
"""Of fewer it may be results that are kept."""
_LEARNING = (
    *("backward", "fit", "grad", "manual_backward", "vjp", "jvp"),
    *("hessian", "hvp", "jacfwd", "jacobian", "jacrev", "vhp"),
)
"""Functions and methods that compute gradients."""


@dataclass(frozen=True, slots=True, eq=False)
class NeedlessGraph(Cause):
    """The statement that calls the model, or else makes the tensors."""

    place: Place


class NoBackward(GrowthRule[NeedlessGraph]):
    """An evaluation without `torch.no_grad()` whose results are kept."""

    name = "no-backward"
    summary = "graphs are kept though nothing runs a backward pass"
    fixes = ("no_grad",)
    yields_to = (*EVERY_OTHER, "collecting-object")

    def match(self, case: Case) -> NeedlessGraph | None:
        """A graph that stays, while no backward pass runs that the labels know of.

        The holder says that a graph does, or what stays comes from all over a model: one module's
        results may be kept by a loop of a framework that runs without gradients.
        """
        builds = case.graph and case.finding.kind is not Kind.CYCLE
        if (
            not builds
            or (case.backward and not none_meanwhile(case.window, case.finding.evidence.allocs))
            or case.site is None
            or not (case.links & THROUGH_GRAPH or _is_of_modules(case))
        ):
            return None
        return NeedlessGraph(calling_place(case) or case.site)

    def advice(self, cause: NeedlessGraph, case: Case) -> Iterator[Advice]:
        """Build none: before all else where the program has no backward pass at all.

        Unless what is kept was seen to make most of the bytes by itself, and its graph few.
        """
        stays = case.kept_itself
        is_of_graph = stays <= _MOSTLY or not case.links & THROUGH_GRAPH
        yield Advice(
            "no_grad",
            "Nothing here runs a backward pass, yet the graph is built and kept.",
            cause.place,
            patch=under_no_grad(case),
            peaks=_without_any_graph(case) if is_of_graph else None,
            remains=0.0 if is_of_graph else stays,
            above_all=is_of_graph and not (case.backward or _may_learn(case)),
        )


def _may_learn(case: Case) -> bool:
    """Whether a file of the program computes gradients, if not while it was recorded."""
    return any(True for one in case.everywhere for _ in calls_in(one.tree, *_LEARNING))


def _without_any_graph(case: Case) -> Saving | None:
    """The peaks with the graphs, and with each tensor of them gone when the next is made.

    Several calls may be of one step: none of them has a graph then.
    """
    window = case.window
    if window is None or case.finding.growth.is_replaced or not len(case.finding.evidence.allocs):
        return None
    nothing = np.empty(0, dtype=np.int64)
    cuts = without_graph(window, nothing, survivors(case.finding, window))
    return replayed(window.line, cuts)


def _is_of_modules(case: Case) -> bool:
    """Whether several modules made it, with gradients on as far as the source says."""
    if case.trace is None or without_gradients(case.finding.stack):
        return False
    labels = np.unique(case.trace.events.label[case.finding.evidence.allocs])
    modules = {case.trace.label(int(label)).module for label in labels} - {""}
    return len(modules) >= _LEAST_MODULES


RULE = NoBackward()
