"""From findings to remedies, with what each of them saves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import PurePath

from memprof.advice import (
    allocator,
    backward,
    collectors,
    containers,
    cycles,
    errors,
    graph,
    placement,
)
from memprof.advice.case import Case, Proposal
from memprof.advice.saving import saving_of
from memprof.advice.vocabulary import PATCHED
from memprof.analysis.findings import Found, Remedy
from memprof.rules.collection import rule_named
from memprof.rules.pages import explained_by
from memprof.rules.rule import Advice
from memprof.run import Run
from memprof.source_code.patch import patched_file
from memprof.source_code.program import program_of
from memprof.views.peak_without import Saving

__all__ = ["advise"]

_MOST = 3
_RULES: tuple[Callable[[Case], Iterator[Proposal]], ...] = (
    errors.rules,
    cycles.rules,
    graph.rules,
    backward.rules,
    containers.rules,
    collectors.rules,
    placement.rules,
    allocator.rules,
)


def advise(found: Found, run: Run) -> tuple[Remedy, ...]:
    """At most three remedies for a finding, the most certain and most local first.

    Those that give none of its bytes back come last.
    """
    case = Case(found, run)
    rule = rule_named(found.rule)
    changes = [*map(_proposal, rule.advice(found.match, case))] if rule is not None else []
    if rule is None or case.grows:
        changes += [proposal for rules in _RULES for proposal in rules(case)]
    proposals = [_of_what_ran(proposal, case) for proposal in changes]
    proposals.sort(key=lambda p: -p.certainty)
    best: dict[str, Proposal] = {}
    for proposal in proposals:
        best.setdefault(proposal.fix, proposal)
    first = sorted(list(best.values())[:_MOST], key=lambda p: p.remains >= 1)
    return tuple(_remedy(proposal, case) for proposal in first)


def _proposal(advice: Advice) -> Proposal:
    """A rule's advice beside that of the families: as sure as the others, so its order stays."""
    return Proposal(
        fix=advice.fix,
        certainty=1.0,
        why=advice.why,
        place=advice.place,
        line=advice.line,
        patch=advice.patch,
        remains=advice.remains,
        saving=advice.saving,
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
