"""small-view: a small view is stored, and keeps the whole storage that it is a part of."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from memprof.records import Holder
from memprof.rules.case import Case
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.rules.small_views import PartOfStorage, advice_on_view, small_view
from memprof.source_code.escaping_views import EscapingView, escaping_view

__all__ = ["RULE"]


@dataclass(frozen=True, slots=True, eq=False)
class ViewHandedOn(Cause):
    """The only view by which a function hands on what stays, where no search found a holder."""

    view: EscapingView


class SmallView(GrowthRule[PartOfStorage | ViewHandedOn]):
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

    def match(self, case: Case) -> PartOfStorage | ViewHandedOn | None:
        """A view in a chain of references that shows less than its storage has.

        Or the view that a function hands on, where C++ alone has what stays.
        """
        return small_view(case) or _handed_on(case)

    def advice(self, cause: PartOfStorage | ViewHandedOn, case: Case) -> Iterator[Advice]:
        """Store a clone of the part."""
        if isinstance(cause, ViewHandedOn):
            view = cause.view
            suffix = ".copy()" if view.is_array else ".clone()"
            yield Advice(
                "clone_view",
                f"`{ast.unparse(view.value)}` is a view, and all that is handed on of what stays: "
                "it keeps the whole storage.",
                view.place,
                typed=f"{ast.unparse(view.value)}{suffix}",
            )
            return
        yield from advice_on_view(cause, case)


def _handed_on(case: Case) -> ViewHandedOn | None:
    """The view by which alone the function that made it hands on what is there still."""
    if case.graph or case.of_model or case.site is None or not case.finding.bytes_per_step:
        return None
    if not case.finding.holders or not all(map(_is_of_tensor, case.finding.holders)):
        return None
    view = escaping_view(case.site)
    is_shared = view is not None and (case.finding.device == "cpu" or not view.is_array)
    return ViewHandedOn(view) if view is not None and is_shared else None


def _is_of_tensor(holder: Holder) -> bool:
    """Whether a tensor has it that no object of Python's refers to, as far as a search saw."""
    unowned = holder.links[0].unowned if len(holder.links) == 1 else None
    return unowned is not None and unowned.owner == "Tensor"


RULE = SmallView()
