"""From findings to remedies, with what each of them saves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import NamedTuple

from memprof.rules.case import Case
from memprof.rules.finding import Remedy, RuleFinding
from memprof.rules.fixes import PATCHED
from memprof.rules.frameworks import construction, typed
from memprof.rules.left_out import left_out_if_it_fails
from memprof.rules.load_rules import growth_rules, rule_named
from memprof.rules.pages import explained_by
from memprof.rules.rule import Advice, WasteRule
from memprof.rules.run_rule import RunRule
from memprof.rules.saving import at_overall_peak, is_per_step, saving_of
from memprof.source_code.patch import patched_file
from memprof.source_code.program import Place, program_of
from memprof.views.examination import Examination
from memprof.views.peak_without import Saving

__all__ = ["with_remedies"]

_MOST = 3
"""Remedies of a finding."""
_MOSTLY = 0.5
"""Share of the bytes: what leaves more of them is no remedy of what grows."""
_TO_HOST = ("cpu_offload", "map_location_cpu")
"""Fixes that move to the host what lies on a device."""
_HOST_IS_DEVICE = "(That saves memory of a GPU: on a CPU the host is the device.)"


class _OfRule(NamedTuple):
    """Advice, and the name of the rule that gives it."""

    rule: str
    advice: Advice


def with_remedies(finding: RuleFinding, examination: Examination) -> RuleFinding:
    """The finding with at most three remedies, those that give little of its bytes back last.

    Where it grows, every rule that explains it gives advice; the first that does names the finding.
    """
    case = Case(finding, examination)
    rule = rule_named(finding.rule)
    advice: list[_OfRule] = []
    if isinstance(rule, (WasteRule, RunRule)):
        with left_out_if_it_fails(rule.name):
            advice = [_OfRule(rule.name, one) for one in rule.advice(finding.match, case)]
    if case.grows:
        advice += sorted(_on_growth(case), key=lambda one: one.advice.otherwise)
    best: dict[str, _OfRule] = {}
    for one in advice:
        if one.advice.above_all or one.advice.fix not in best:
            best[one.advice.fix] = one
    useful = [one for one in best.values() if not _is_there_already(one.advice, finding)]
    named = _by_use(useful)
    useful.sort(key=lambda one: not one.advice.above_all)
    by_use = _by_use(useful)
    if case.grows and len(by_use) > 1 and by_use[0].advice.fix == "cpu_offload":
        by_use[:2] = by_use[1::-1]  # on the host it goes on to grow
    if named and rule is None:
        finding = replace(finding, rule=named[0].rule)
    first = [one._replace(advice=_of_what_ran(one.advice, case)) for one in by_use]
    return replace(finding, remedies=tuple(_remedy(*one, case) for one in first))


def _by_use(useful: Sequence[_OfRule]) -> list[_OfRule]:
    """The first few, those last that leave most of the bytes."""
    return sorted(
        useful[:_MOST],
        key=lambda one: one.advice.remains > _MOSTLY and not one.advice.above_all,
    )


def _is_there_already(advice: Advice, finding: RuleFinding) -> bool:
    """Whether it would move to the host what lies there at its peak: that helps on a GPU only.

    What grows is asked for on the CPU mostly to learn what it will do on a GPU.
    """
    return advice.fix == "cpu_offload" and finding.device == "cpu" and not finding.bytes_per_step


def _on_growth(case: Case) -> Iterator[_OfRule]:
    """What every rule that explains the growth advises, in the rules' order."""
    for rule in growth_rules():
        advice: list[_OfRule] = []
        with left_out_if_it_fails(rule.name):
            cause = rule.match(case)
            if cause is not None:
                advice = [_OfRule(rule.name, one) for one in rule.advice(cause, case)]
        yield from advice


def _of_what_ran(advice: Advice, case: Case) -> Advice:
    """Without its patch where that would be one of a file that is not what the job ran."""
    program = program_of(patched_file(advice.patch))
    if program is None or case.is_as_it_ran(program) is not False:
        return advice
    case.changed.add(program.filename)
    return replace(advice, patch="")


def _remedy(rule: str, advice: Advice, case: Case) -> Remedy:
    nbytes, saving = saving_of(case.finding, case.window, advice.fix)
    if advice.saving is not None:
        saving = advice.saving.overall
        nbytes = saving.bytes
    saving = advice.peaks or saving
    if is_per_step(case.finding) and saving is not None and advice.saving is None:
        saving = at_overall_peak(saving, case)
    why = advice.why + _reason_for_no_patch(advice, case)
    if advice.fix in _TO_HOST and case.finding.device == "cpu":
        nbytes, saving, why = 0, None, f"{why} {_HOST_IS_DEVICE}"
    code = advice.typed or typed(advice.fix, case.finding.stack, case.finding.device)
    made_at = None  # what an advice itself says to type belongs at its own place
    if not advice.typed:
        made_at = construction(advice.fix, case.finding.stack, case.programs)
    place = made_at or advice.place
    line = 0 if made_at is not None else advice.line
    line = line or (place.line if place is not None else case.finding.site.line)
    filename = place.program.filename if place is not None else case.finding.site.filename
    return Remedy(
        fix=advice.fix,
        why=why,
        filename=filename,
        line=line,
        code=_code(place, case, line),
        saves_bytes=round(nbytes * (1 - advice.remains)),
        saves_per_step=advice.saving is None and is_per_step(case.finding),
        peak_before=saving.before if saving is not None else -1,
        peak_after=_after(saving, advice.remains or advice.stays) if saving is not None else -1,
        typed=code,
        patch=advice.patch,
        page=explained_by(advice.fix),
        rule=rule,
    )


def _code(place: Place | None, case: Case, line: int) -> str:
    if place is not None:
        return place.program.code(line).strip()
    site = case.finding.site
    return "" if site.filename in case.changed else site.code


def _reason_for_no_patch(advice: Advice, case: Case) -> str:
    """Says that a patch is missing because it would be one of another text than was recorded."""
    if advice.patch or advice.fix not in PATCHED or not case.changed:
        return ""
    names = ", ".join(sorted(f"`{PurePath(name).name}`" for name in case.changed))
    verb = "has" if len(case.changed) == 1 else "have"
    return f" No patch is made: {names} {verb} changed since."


def _after(saving: Saving, remains: float) -> int:
    return round(saving.before - saving.bytes * (1 - remains))
