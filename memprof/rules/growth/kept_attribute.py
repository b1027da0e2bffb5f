"""kept-attribute: an attribute or a variable holds the tensors beyond their step."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from memprof.records import Holder
from memprof.reference_chain import LinkKind
from memprof.rules.case import NO_FIGURE, Case, says
from memprof.rules.rule import EVERY_OTHER, Advice, Cause, GrowthRule
from memprof.source_code.idioms import growing
from memprof.source_code.program import Place, bound_names

__all__ = ["RULE"]

_SAY_MORE = frozenset(
    {
        *(LinkKind.CYCLE, LinkKind.CPP_CYCLE, LinkKind.LRU_CACHE, LinkKind.CLASS_ATTRIBUTE),
        *(LinkKind.LOG_RECORD, LinkKind.TRACEBACK, LinkKind.ITERATOR),
    }
)
"""Links that say more than the attribute or variable that they begin with."""


@dataclass(frozen=True, slots=True, eq=False)
class Name(Cause):
    """What holds the tensors by a name; nothing where no holder was found."""

    holder: Holder | None = None
    place: Place | None = None
    """The statement that binds the name."""
    name: str = ""
    """As written: ``self.batch``; empty where the statement binds none."""

    @property
    def is_attribute(self) -> bool:
        """Whether it outlives the function that binds it."""
        return "." in self.name


class KeptAttribute(GrowthRule[Name]):
    """`sample.features = features` for every sample of a list."""

    name = "kept-attribute"
    summary = "an attribute or a variable holds tensors beyond their step"
    fixes = ("del_ref", "clear_container")
    yields_to = (*EVERY_OTHER, "collecting-object", "growing-container")

    def match(self, case: Case) -> Name | None:
        """The first holder whose statement is here; else whatever outlives its step."""
        if case.links & _SAY_MORE:
            return None
        for holder in case.finding.holders:
            place = case.place_of(holder)
            if place is not None:
                names = bound_names(place.statement)
                return Name(holder, place, ast.unparse(names[0]) if names else "")
        is_of_tensors = bool(case.finding.site.filename and case.finding.bytes_per_step)
        return Name(place=case.site) if is_of_tensors else None

    def advice(self, cause: Name, case: Case) -> Iterator[Advice]:
        """Drop the reference."""
        filling = growing(cause.place) if cause.holder is None else None
        if filling is not None:
            yield Advice(
                "clear_container",
                f"`{filling.container}` takes what this line makes: empty it when it has been "
                "used, or keep the last few (`deque(maxlen=…)`).",
                cause.place,
            )
        if cause.holder is None:
            why = "It outlives its step; drop the last reference to it."
            yield Advice("del_ref", why, cause.place, otherwise=True)
            return
        name = f"`{cause.name}`" if cause.name else "what holds it"
        yield Advice(
            "del_ref",
            f"Let go of {name} when it is done with: {says(cause.holder)}.",
            cause.place,
            # Of a graph the name is not what is too much, and what letting go of it saves no replay
            # tells.
            saving=None if case.direct else NO_FIGURE,
            otherwise=not (cause.is_attribute and case.direct),
        )


RULE = KeptAttribute()
