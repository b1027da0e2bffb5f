"""collector-off: the program has switched the garbage collector off, and cycles stay for ever."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memprof.reference_chain import CYCLES, LinkKind, largest_container
from memprof.rules.case import Case
from memprof.rules.finding import Kind
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.program import Place, Program, calls_in
from memprof.source_code.scopes import qualified_name

__all__ = ["RULE"]

_OFF, _ON = "gc.disable", frozenset(("gc.collect", "gc.enable"))
_TRIALS = "gc_after_trial"
"""Optuna's own switch: it collects after each trial."""
_FEWEST = 4
"""Times that as much was made, of which what holds the last does not hold the others."""


@dataclass(frozen=True, slots=True, eq=False)
class CollectorOff(Cause):
    """Where the program switches it off, and where a loop of Optuna's begins."""

    place: Place
    trials: Place | None


class CollectorOffRule(GrowthRule[CollectorOff]):
    """`gc.disable()`, and a trainer and its module in each trial, which know each other."""

    name = "collector-off"
    summary = "the garbage collector is off, and what is part of a cycle is never freed"
    fixes = ("collect_garbage",)
    precedes = ("kept-attribute", "reference-cycle", "growing-container", "collected-models")

    def match(self, case: Case) -> CollectorOff | None:
        """What a cycle keeps, or more of it than who holds the last can hold."""
        place = _switched_off(case.programs)
        if place is None or not _may_be_cyclic(case):
            return None
        places = (at for _, at in case.calls("optimize"))
        return CollectorOff(place, next(places, None))

    def advice(self, cause: CollectorOff, case: Case) -> Iterator[Advice]:  # noqa: ARG002
        """Let it run where a round is done."""
        typed, where = "gc.collect()", "after each round"
        if cause.trials is not None:
            typed, where = f"{_TRIALS}=True", "after each trial (`study.optimize`)"
        yield Advice(
            "collect_garbage",
            f"`{_OFF}()` in line {cause.place.line} keeps Python from freeing objects that refer "
            f"to each other, and with them their tensors: collect {where}, or leave the collector "
            "on.",
            cause.trials or cause.place,
            typed=typed,
        )


def _may_be_cyclic(case: Case) -> bool:
    """Whether a cycle has it, or there is more of it than the container of its holder has items."""
    finding = case.finding
    if finding.kind is Kind.CYCLE or case.links & CYCLES:
        return True
    if not finding.holders:
        return False
    links = finding.holders[0].links
    at = largest_container(links)
    length = links[at].length if at is not None else 1
    is_local = links[0].kind is LinkKind.LOCAL and not any(link.grows for link in links)
    return is_local and finding.growth.times >= max(_FEWEST, 2 * length)


def _switched_off(programs: Sequence[Program]) -> Place | None:
    """The first call that switches the collector off, in a file that never has it collect."""
    for program in programs:
        by_name: dict[str, Place] = {}
        for call in calls_in(program.tree, "disable", "collect", "enable"):
            place = program.place(call)
            if place is not None:
                by_name.setdefault(qualified_name(place, call.func), place)
        if _OFF in by_name and not by_name.keys() & _ON:
            return by_name[_OFF]
    return None


RULE = CollectorOffRule()
