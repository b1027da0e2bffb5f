"""saved-view: a custom Function saves a view of its own output."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from memprof.reference_chain import LinkKind
from memprof.rules.case import Case
from memprof.rules.graph_lines import holding_places
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.idioms import is_autograd_function
from memprof.source_code.patch import diff, wrapped
from memprof.source_code.program import Place, calls_in

__all__ = ["RULE"]

_SAVED = frozenset({LinkKind.CPP_CYCLE, LinkKind.SAVED_TENSOR})


@dataclass(frozen=True, slots=True, eq=False)
class SavedViews(Cause):
    """The call that saves, and those of its arguments that are views."""

    place: Place
    views: tuple[ast.expr, ...]


class SavedView(GrowthRule[SavedViews]):
    """`ctx.save_for_backward(y[1])` in a Function that returns `y`."""

    name = "saved-view"
    summary = "a custom Function saves a view of its own output"
    fixes = ("clone_view",)
    precedes = ("kept-graph",)

    def match(self, case: Case) -> SavedViews | None:
        """A call of ``save_for_backward`` with a part of something, where a graph holds itself."""
        if not case.links & _SAVED:
            return None
        for near in holding_places(case):
            function = near.function if is_autograd_function(near) else None
            for call in calls_in(function, "save_for_backward") if function is not None else ():
                views = tuple(a for a in call.args if isinstance(a, (ast.Subscript, ast.Call)))
                place = near.program.place(call)
                if views and place is not None:
                    return SavedViews(place, views)
        return None

    def advice(self, cause: SavedViews, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the call says all
        """Save a clone."""
        edits = (edit for view in cause.views for edit in wrapped(view, ".clone()"))
        yield Advice(
            "clone_view",
            f"`{ast.unparse(cause.views[0])}` is a view of an output: its graph node saves a "
            "tensor whose base has that node as its own `grad_fn`.",
            cause.place,
            patch=diff(cause.place.program, *edits),
        )


RULE = SavedView()
