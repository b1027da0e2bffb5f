"""From findings to remedies, with what each of them saves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import PurePath

from memprof.advice import (
    allocator,
    collectors,
    containers,
    cycles,
    errors,
    placement,
)
from memprof.rules.case import Case, Proposal
from memprof.rules.collection import growth_rules, rule_named
from memprof.rules.finding import Found, Remedy
from memprof.rules.fixes import PATCHED
from memprof.rules.pages import explained_by
from memprof.rules.rule import Advice, WasteRule
from memprof.rules.run_rule import RunRule
from memprof.rules.saving import saving_of
from memprof.run import Run
from memprof.source_code.patch import patched_file
from memprof.source_code.program import program_of
from memprof.views.peak_without import Saving

__all__ = ["with_remedies"]

_MOST = 3
_FAMILIES: tuple[Callable[[Case], Iterator[Proposal]], ...] = (
    errors.rules,
    cycles.rules,
    containers.rules,
    collectors.rules,
    placement.rules,
    allocator.rules,
)
_CERTAINTY: dict[str, tuple[float, float]] = {
    "running-sum": (0.95, 0.7),
    "carried-state": (0.9, 0.9),
    "create-graph": (0.93, 0.9),
    "kept-graph": (0.87, 0.65),
    "assigned-history": (0.86, 0.6),
    "no-backward": (0.75, 0.75),
}
"""Of each rule of growth, what it advises first and otherwise, beside the proposals of families."""


def with_remedies(found: Found, run: Run) -> Found:
    """The finding with at most three remedies, those that give none of its bytes back last.

    Where it grows, every rule that explains it gives advice; the first that does names the finding.
    """
    case = Case(found, run)
    rule = rule_named(found.rule)
    advice: list[tuple[str, Advice]] = []
    if isinstance(rule, (WasteRule, RunRule)):
        advice = [(rule.name, one) for one in rule.advice(found.match, case)]
    changes = [_proposal(name, one) for name, one in advice]
    if case.grows:
        advice = sorted(_on_growth(case), key=lambda pair: pair[1].otherwise)
        if advice and rule is None:
            found = replace(found, rule=advice[0][0])
        changes += [_proposal(name, one) for name, one in advice]
        changes += [proposal for family in _FAMILIES for proposal in family(case)]
    proposals = [_of_what_ran(proposal, case) for proposal in changes]
    proposals.sort(key=lambda p: -p.certainty)
    best: dict[str, Proposal] = {}
    for proposal in proposals:
        best.setdefault(proposal.fix, proposal)
    first = sorted(list(best.values())[:_MOST], key=lambda p: p.remains >= 1)
    return replace(found, remedies=tuple(_remedy(proposal, case) for proposal in first))


def _on_growth(case: Case) -> Iterator[tuple[str, Advice]]:
    """What every rule that explains the growth advises, with its name, in the rules' order."""
    for rule in growth_rules():
        cause = rule.match(case)
        if cause is not None:
            for advice in rule.advice(cause, case):
                yield rule.name, advice


def _proposal(rule: str, advice: Advice) -> Proposal:
    """A rule's advice beside that of the families."""
    first, otherwise = _CERTAINTY.get(rule, (1.0, 1.0))
    if rule == "kept-graph" and advice.fix == "detach":
        otherwise = 0.7 if advice.remains >= 1 else 0.5
    if rule == "kept-graph" and advice.fix == "no_retain_graph":
        first, otherwise = 0.85, 0.5
    return Proposal(
        fix=advice.fix,
        certainty=otherwise if advice.otherwise else first,
        why=advice.why,
        place=advice.place,
        line=advice.line,
        patch=advice.patch,
        remains=advice.remains,
        saving=advice.saving,
        rule=rule,
    )


def _of_what_ran(proposal: Proposal, case: Case) -> Proposal:
    """Without its patch where that would be one of a file that is not what the job ran."""
    program = program_of(patched_file(proposal.patch))
    if program is None or case.is_as_it_ran(program) is not False:
        return proposal
    case.changed.add(program.filename)
    return replace(proposal, patch="")


def _remedy(proposal: Proposal, case: Case) -> Remedy:
    nbytes, saving = saving_of(case.found, case.run)
    if proposal.saving is not None:
        nbytes, saving = proposal.saving.bytes, proposal.saving
    place = proposal.place
    line = proposal.line or (place.line if place is not None else case.found.site.line)
    filename = place.program.filename if place is not None else case.found.site.filename
    return Remedy(
        fix=proposal.fix,
        why=proposal.why + _unpatched(proposal, case),
        filename=filename,
        line=line,
        code=_code(proposal, case, line),
        saves_bytes=round(nbytes * (1 - proposal.remains)),
        peak_before=saving.before if saving is not None else -1,
        peak_after=_after(saving, proposal.remains) if saving is not None else -1,
        patch=proposal.patch,
        page=explained_by(proposal.fix),
        rule=proposal.rule,
    )


def _code(proposal: Proposal, case: Case, line: int) -> str:
    if proposal.place is not None:
        return proposal.place.program.code(line).strip()
    site = case.found.site
    return "" if site.filename in case.changed else site.code


def _unpatched(proposal: Proposal, case: Case) -> str:
    """Says that a patch is missing because it would be one of another text than was recorded."""
    if proposal.patch or proposal.fix not in PATCHED or not case.changed:
        return ""
    names = ", ".join(sorted(f"`{PurePath(name).name}`" for name in case.changed))
    verb = "has" if len(case.changed) == 1 else "have"
    return f" No patch is made: {names} {verb} changed since."


def _after(saving: Saving, remains: float) -> int:
    return round(saving.before - saving.bytes * (1 - remains))
