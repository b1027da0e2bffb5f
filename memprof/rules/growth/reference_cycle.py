"""reference-cycle: objects refer to each other, and only the garbage collector frees them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memprof.records import Holder
from memprof.reference_chain import CYCLES, LinkKind
from memprof.rules.case import Case, says
from memprof.rules.finding import Kind
from memprof.rules.rule import EVERY_OTHER, Advice, Cause, GrowthRule
from memprof.source_code.program import Place

__all__ = ["RULE"]

_OF_FUNCTIONS = frozenset({LinkKind.CLOSURE, LinkKind.BOUND_METHOD})
_ATTRIBUTES = frozenset({LinkKind.ATTRIBUTE, LinkKind.MODULE_ATTRIBUTE})


@dataclass(frozen=True, slots=True, eq=False)
class Cycle(Cause):
    """What is known of it."""

    holder: Holder | None
    place: Place | None
    """A statement that makes one of its links; else the one that made the tensors."""


class ReferenceCycle(GrowthRule[Cycle]):
    """`self.forward = lambda x: self.net(x)`, `child.parent = self`."""

    name = "reference-cycle"
    summary = "a reference cycle holds tensors until the garbage collector runs"
    fixes = ("break_cycle", "weakref")
    yields_to = (*EVERY_OTHER, "collecting-object", "no-backward")

    def match(self, case: Case) -> Cycle | None:
        """Tensors that only the collector frees, or a cycle in a chain of references."""
        if case.finding.kind is not Kind.CYCLE and not case.links & CYCLES:
            return None
        holder = case.finding.holders[0] if case.finding.holders else None
        return Cycle(holder, _closure(case) or case.place_of(holder) or case.site)

    def advice(self, cause: Cycle, case: Case) -> Iterator[Advice]:
        """Break it; or make one of its links weak."""
        holder = cause.holder
        text = says(holder) if holder is not None else "nothing but the collector frees it"
        yield Advice(
            "break_cycle",
            f"It is part of a reference cycle: {text}.",
            cause.place,
            otherwise=not case.links & _OF_FUNCTIONS,
        )
        if holder is not None and any(link.kind in _ATTRIBUTES for link in holder.links):
            yield Advice(
                "weakref",
                f"One link of the cycle can be weak: {text}.",
                _other_link(case, cause) or cause.place,
                otherwise=True,
            )


def _other_link(case: Case, cause: Cycle) -> Place | None:
    """The statement of another link of the cycle."""
    for link in cause.holder.links if cause.holder is not None else ():
        place = case.place_at(link.filename, link.line) if link.kind in _ATTRIBUTES else None
        if place is not None and (cause.place is None or place.line != cause.place.line):
            return place
    return None


def _closure(case: Case) -> Place | None:
    """The statement that makes the closure: where the lambda or the inner function stands."""
    return case.link_place(*_OF_FUNCTIONS) if not case.places else None


RULE = ReferenceCycle()
