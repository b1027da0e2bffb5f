"""no-backward: graphs are built and kept where nothing ever runs a backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memprof.rules.case import Case
from memprof.rules.finding import Kind
from memprof.rules.graph_lines import under_no_grad
from memprof.rules.rule import EVERY_OTHER, Advice, Cause, GrowthRule
from memprof.source_code.program import Place

__all__ = ["RULE"]


@dataclass(frozen=True, slots=True, eq=False)
class NeedlessGraph(Cause):
    """The statement that makes the tensors."""

    place: Place


class NoBackward(GrowthRule[NeedlessGraph]):
    """An evaluation without `torch.no_grad()` whose results are kept."""

    name = "no-backward"
    summary = "graphs are kept though nothing runs a backward pass"
    fixes = ("no_grad",)
    yields_to = (*EVERY_OTHER, "collecting-object")

    def match(self, case: Case) -> NeedlessGraph | None:
        """A graph that something holds, in a run whose labels know no backward pass."""
        builds = case.graph and not case.backward and case.finding.kind is not Kind.CYCLE
        if not builds or case.site is None or not case.links:
            return None
        return NeedlessGraph(case.site)

    def advice(self, cause: NeedlessGraph, case: Case) -> Iterator[Advice]:
        """Build none."""
        yield Advice(
            "no_grad",
            "Nothing here runs a backward pass, yet the graph is built and kept.",
            cause.place,
            patch=under_no_grad(case),
        )


RULE = NoBackward()
