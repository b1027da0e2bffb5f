"""kept-method: a record keeps a method of an object where its result would do."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from memprof.reference_chain import CYCLES, LinkKind, is_field, largest_container
from memprof.rules.case import Case
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
_RECORDS = frozenset({LinkKind.ATTRIBUTE, LinkKind.CLOSURE, LinkKind.DEFAULT_ARGUMENT})


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
        """A method that an attribute or a record's entry holds, and one place that names it."""
        if case.links & _SAY_MORE:
            return None
        for holder in case.finding.holders:
            registry = largest_container(holder.links)
            for at, (above, link) in enumerate(pairwise(holder.links)):
                is_record = above.kind in _RECORDS or is_field(above)
                if link.kind == LinkKind.BOUND_METHOD and is_record and at != registry:
                    references = list(_references(case, link.type_name.rpartition(".")[2]))
                    if len(references) == 1:
                        return references[0]
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


def _references(case: Case, name: str) -> Iterator[MethodReference]:
    """Places where a method of that name is named and not called."""
    for program in case.programs:
        functions = {id(n.func) for n in program.nodes if isinstance(n, ast.Call)}
        for node in program.nodes:
            if not isinstance(node, ast.Attribute) or node.attr != name or id(node) in functions:
                continue
            place = program.place(node) if isinstance(node.ctx, ast.Load) else None
            if place is not None:
                yield MethodReference(place, node.lineno, ast.unparse(node))


RULE = KeptMethod()
