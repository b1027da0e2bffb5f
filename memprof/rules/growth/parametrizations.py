"""parametrizations: every call puts one more parametrization on those that a module has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memprof.reference_chain import LinkKind
from memprof.rules.case import Case
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.program import Place

__all__ = ["RULE"]

_OF_MODULES = frozenset({LinkKind.MODULE_ATTRIBUTE, LinkKind.PARAMETER, LinkKind.BUFFER})
_LIST = "parametrizations"
"""The name that torch gives to a module's list of them."""
_REGISTERING = ("register_parametrization", "orthogonal", "spectral_norm", "weight_norm")
"""The function that registers one, and torch's own that do so with one of theirs."""


@dataclass(frozen=True, slots=True, eq=False)
class ParametrizationCall(Cause):
    """The statement that registers."""

    place: Place


class Parametrizations(GrowthRule[ParametrizationCall]):
    """`register_parametrization(layer, "weight", …)` in every step."""

    name = "parametrizations"
    summary = "a module gets one more parametrization in every step"
    fixes = ("del_ref",)
    precedes = ("kept-graph",)

    def match(self, case: Case) -> ParametrizationCall | None:
        """Something below a module's list of parametrizations, which the program registers."""
        links = [link for holder in case.finding.holders for link in holder.links]
        if not any(one.kind in _OF_MODULES and _LIST in one.name.split(".") for one in links):
            return None
        places = [place for _, place in case.calls(*_REGISTERING)]
        ran = {id(place.scope) for _, place in case.frames}
        places.sort(key=lambda one: id(one.scope) not in ran)
        return next(map(ParametrizationCall, places), None)

    def advice(self, cause: ParametrizationCall, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the statement says all
        """Register it once."""
        yield Advice(
            "del_ref",
            "Every call puts one more parametrization on top of those that the module has: "
            "register it once, or take it off with `remove_parametrizations`.",
            cause.place,
        )


RULE = Parametrizations()
