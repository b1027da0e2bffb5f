"""Everything that is wrong with a run, best first, with remedies; nothing is detected here."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

from memprof.rules.finding import Kind, Remedy, RuleFinding
from memprof.rules.floor import growth_of, is_beside_card, is_minor, is_tiny
from memprof.rules.growth_findings import leaks
from memprof.rules.load_rules import rule_named
from memprof.rules.remedies import with_remedies
from memprof.rules.rule import WasteRule
from memprof.rules.run_rule import RunRule
from memprof.rules.same_memory import ANY_GROWTH, ANY_WASTE
from memprof.rules.waste_findings import waste_of
from memprof.rules.whole_run_findings import over_run
from memprof.run import Run
from memprof.views.examination import Examination, examine
from memprof.views.time_to_full import times_to_full

__all__ = ["findings", "without_repeats"]

_LITTLE = 0.1
"""Of what the best change of some waste saves, that growth must come to, to be told before it."""
_SOON = 100
"""Steps in which it must come to that, where the run has fewer: it may be a short trial."""
_MUCH = 0.5
_OWN = 1.5
"""Times its own bytes, that growth takes off the peak by itself at most, with copies of it."""
_OF_ONE_THING = ("del_ref",)
"""Fixes that let go of what one variable has, though a line may bind several."""
_BEFORE_WASTE = (Kind.LEAK, Kind.NON_TORCH, Kind.HOST_GROWTH, Kind.FRAGMENTATION)
"""Kinds of findings over a whole run that come before waste at a peak, the gravest first."""


def findings(run: Run, examination: Examination | None = None) -> tuple[RuleFinding, ...]:
    """What grows first, the fastest first; then what is merely there, the largest first.

    What is too small for a headline, or may be meant, comes last, and is marked as ``minor``.

    ``examination`` saves time where the caller has one of ``run`` already.
    """
    examination = examination or examine(run)
    over = over_run(examination)
    candidates = [
        *leaks(examination),
        *(one for kind in _BEFORE_WASTE for one in over if one.kind is kind),
        *waste_of(examination),
        *(one for one in over if one.kind not in _BEFORE_WASTE),
    ]
    with_fixes = [
        with_remedies(one, examination) for one in _until_full(without_repeats(candidates), run)
    ]
    with_fixes = _saved_by_one_change(with_fixes)
    marked = [replace(one, minor=is_minor(one, examination)) for one in with_fixes]
    if any(one.kind is Kind.LEAK and not one.minor and not is_tiny(one) for one in marked):
        # Beside what is a leak, a few bytes are what it has around it, or nothing.
        marked = [
            replace(one, minor=one.minor or (one.kind is Kind.LEAK and is_tiny(one)))
            for one in marked
        ]
    wastes = [one for one in marked if one.kind is Kind.WASTE and not one.minor]

    def place(one: RuleFinding) -> tuple[bool, bool, bool]:
        is_of_host = one.kind is Kind.WASTE and is_beside_card(one, examination)
        return one.minor, _comes_to_less(one, wastes, examination), is_of_host

    return tuple(_by_saving(sorted(marked, key=place)))


def _by_saving(findings: Sequence[RuleFinding]) -> list[RuleFinding]:
    """The findings, with waste over a run before the first waste at a peak that saves less."""
    ordered: list[RuleFinding] = []
    for one in findings:
        at = len(ordered)
        if _is_waste_over_run(one):
            less = (
                place
                for place, other in enumerate(ordered)
                if other.kind is Kind.WASTE
                and (other.minor, other.device) == (one.minor, one.device)
                and not _is_waste_over_run(other)
                and 0 < _saving_of(other) < _saving_of(one)
            )
            at = next(less, at)
        ordered.insert(at, one)
    return ordered


def _is_waste_over_run(finding: RuleFinding) -> bool:
    return finding.kind is Kind.WASTE and not isinstance(rule_named(finding.rule), WasteRule)


def _saving_of(finding: RuleFinding) -> int:
    """Bytes by which the first remedy lowers the peak; 0 where that is not known."""
    return max(0, finding.remedies[0].saves_bytes) if finding.remedies else 0


def _saved_by_one_change(findings: Sequence[RuleFinding]) -> list[RuleFinding]:
    """The findings; what one change to one line saves of several of them is said of each.

    As where a line adds to the list of whichever object it is called for.
    """
    savings: dict[Hashable, list[tuple[Remedy, int]]] = {}
    for finding in findings:
        for remedy in finding.remedies:
            savings.setdefault(_change(finding, remedy), []).append((remedy, finding.bytes))
    return [
        replace(
            finding,
            remedies=tuple(
                _together(one, savings[_change(finding, one)]) for one in finding.remedies
            ),
        )
        for finding in findings
    ]


def _change(finding: RuleFinding, remedy: Remedy) -> Hashable:
    """What two remedies of growth have in common that are one change; a finding's own else."""
    is_growth = finding.kind in (Kind.LEAK, Kind.CYCLE)
    if not is_growth or not remedy.filename or remedy.fix in _OF_ONE_THING:
        return id(remedy)
    return finding.device, finding.rule, remedy.rule, remedy.fix, remedy.filename, remedy.line


def _together(remedy: Remedy, others: Sequence[tuple[Remedy, int]]) -> Remedy:
    """The remedy with what it saves of all findings that it is a remedy of, given their bytes.

    A replay of one may be without what the others have: it takes more off the peak than its own.
    """
    if len(others) < 2 or any(one.peak_before < 0 for one, _ in others):
        return remedy
    saved = [(one.peak_before - one.peak_after, nbytes) for one, nbytes in others]
    has_others = any(off > _OWN * nbytes for off, nbytes in saved)
    each = [off for off, _ in saved]
    return replace(
        remedy,
        saves_bytes=sum(one.saves_bytes for one, _ in others),
        peak_after=max(0, remedy.peak_before - (max(each) if has_others else sum(each))),
    )


def _comes_to_less(
    finding: RuleFinding, wastes: Sequence[RuleFinding], examination: Examination
) -> bool:
    """Whether what grows comes to little beside what some waste takes of the peak at once.

    Room that lies unused between tensors is reserved as they come and go: where half as many bytes
    of tensors could be spared, or half of all that there are, they come first.
    """
    first = [one.remedies[0] for one in wastes if one.remedies and one.device == finding.device]
    saving = max((one.saves_bytes for one in first), default=0)
    if not saving:
        return False
    if finding.kind is Kind.FRAGMENTATION:
        peak = next(one for one in examination.devices if one.name == finding.device).peak_allocated
        return saving >= _MUCH * min(finding.bytes, peak)
    if finding.kind is not Kind.LEAK:
        return False
    return growth_of(finding, examination, _SOON) < _LITTLE * saving


def _until_full(candidates: Sequence[RuleFinding], run: Run) -> list[RuleFinding]:
    """With the steps that are left on the whole, where they are known: a device has one end."""
    steps_left = {one.device: float(one.steps_left) for one in times_to_full(run)}
    return [
        replace(one, steps_left=steps_left[one.device])
        if one.device in steps_left and one.kind in (Kind.LEAK, Kind.CYCLE)
        else one
        for one in candidates
    ]


def without_repeats(candidates: Sequence[RuleFinding]) -> list[RuleFinding]:
    """Without findings about memory of which another one says it better, by what rules declare.

    A finding yields only to one that is reported itself.
    """

    def is_reported(one: RuleFinding) -> bool:
        return not any(_yields(one, other) and is_reported(other) for other in candidates)

    return [one for one in candidates if is_reported(one)]


def _yields(one: RuleFinding, other: RuleFinding) -> bool:
    rule = rule_named(one.rule)
    if isinstance(rule, WasteRule):
        names = rule.yields_beyond
    elif isinstance(rule, RunRule):
        names = rule.yields_to
    else:
        return False
    return any(_is_of(other, name) for name in names) and rule.overlap.joins(one, other)


def _is_of(finding: RuleFinding, name: str) -> bool:
    """Whether a finding is of a rule, or of one of the rules that a name stands for."""
    if name == ANY_GROWTH:
        return finding.kind in (Kind.LEAK, Kind.CYCLE)
    if name == ANY_WASTE:
        return isinstance(rule_named(finding.rule), WasteRule)
    return finding.rule == name
