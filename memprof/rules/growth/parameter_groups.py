"""parameter-groups: an optimizer is given parameters again and again, and keeps all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memprof.reference_chain import LinkKind
from memprof.rules.case import Case
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.program import Place

__all__ = ["RULE"]


@dataclass(frozen=True, slots=True, eq=False)
class AddedGroup(Cause):
    """The statement that adds a group."""

    place: Place


class ParameterGroups(GrowthRule[AddedGroup]):
    """`optimizer.add_param_group(…)` for each new task or adapter."""

    name = "parameter-groups"
    summary = "an optimizer keeps every parameter that it was ever given"
    fixes = ("del_ref",)

    def match(self, case: Case) -> AddedGroup | None:
        """An optimizer's state in a chain of references, and a call that adds a group."""
        if LinkKind.OPTIMIZER_STATE not in case.links:
            return None
        return next((AddedGroup(place) for _, place in case.calls("add_param_group")), None)

    def advice(self, cause: AddedGroup, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the statement says all
        """Take old groups out."""
        yield Advice(
            "del_ref",
            "An optimizer keeps every parameter it was ever given, and its state: take old groups "
            "out of `param_groups` and `state`, or make a new optimizer.",
            cause.place,
        )


RULE = ParameterGroups()
