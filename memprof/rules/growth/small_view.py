"""small-view: a small view is stored, and keeps the whole storage that it is a part of."""

from __future__ import annotations

from collections.abc import Iterator

from memprof.rules.case import Case
from memprof.rules.rule import Advice, GrowthRule
from memprof.rules.small_views import PartOfStorage, advice_on_view, small_view

__all__ = ["RULE"]


class SmallView(GrowthRule[PartOfStorage]):
    """`rows.append(batch[:2])`: two rows are meant, and the whole batch stays."""

    name = "small-view"
    summary = "a small view keeps its whole storage"
    fixes = ("clone_view",)
    yields_to = ("stored-exception", "log-record")
    precedes = (
        "kept-graph",
        "unbounded-dict",
        "unreset-metric",
        "class-registry",
        "grown-by-concatenation",
    )

    def match(self, case: Case) -> PartOfStorage | None:
        """A view in a chain of references that shows less than its storage has."""
        return small_view(case)

    def advice(self, cause: PartOfStorage, case: Case) -> Iterator[Advice]:
        """Store a clone of the part."""
        yield from advice_on_view(cause, case)


RULE = SmallView()
