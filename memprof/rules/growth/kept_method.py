"""kept-method: a record keeps a method of an object where its result would do."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from memprof.reference_chain import CYCLES, LinkKind
from memprof.rules.case import Case
from memprof.rules.recorded_methods import recorded_method
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.program import Place

__all__ = ["RULE"]

_SAY_MORE = CYCLES | {
    LinkKind.ATEXIT,
    LinkKind.TASK,
    LinkKind.HOOK,
    LinkKind.LRU_CACHE,
    LinkKind.CLASS_ATTRIBUTE,
}
"""Links that say themselves why a method is kept."""


@dataclass(frozen=True, slots=True, eq=False)
class MethodReference(Cause):
    """The statement that hands the method over without calling it."""

    place: Place
    line: int
    method: str
    """As written: ``scheduler.get_last_lr``."""


class KeptMethod(GrowthRule[MethodReference]):
    """`Trial(name, scheduler.get_last_lr)`, with the brackets forgotten."""

    name = "kept-method"
    summary = "a method is kept, and with it the object that it belongs to"
    fixes = ("del_ref",)
    precedes = (
        *("collected-models", "growing-container", "unbounded-dict", "assigned-history"),
        *("collecting-object", "uncalled-release", "parameter-groups", "registered-callback"),
        *("class-registry", "carried-state"),
    )

    def match(self, case: Case) -> MethodReference | None:
        """A method that a record has in a field, uncalled, and one place that names it."""
        if case.links & _SAY_MORE:
            return None
        for holder in case.finding.holders:
            reference = recorded_method(holder.links, case.programs)
            if reference is not None:
                node, place = reference
                return MethodReference(place, node.lineno, ast.unparse(node))
        return None

    def advice(self, cause: MethodReference, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the reference says all
        """Keep what it returns."""
        yield Advice(
            "del_ref",
            f"`{cause.method}` is kept as a method, and a method keeps its object with all that it "
            f"has: keep what it returns (`{cause.method}()`), or hold the object weakly.",
            cause.place,
            cause.line,
        )


RULE = KeptMethod()
