"""The waste in a run: every rule over every device, the surest and largest first."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from memprof.records import Finding, Holder
from memprof.reference_chain import way
from memprof.rules.containers import is_cycle_around_bounded, is_kept_short
from memprof.rules.finding import Evidence, Kind, RuleFinding
from memprof.rules.left_out import left_out_if_it_fails
from memprof.rules.load_rules import waste_rules
from memprof.rules.rule import EVERY_OTHER, Match, WasteRule, confidence_of
from memprof.run import Run
from memprof.units import format_bytes, format_percent
from memprof.views.examination import Examination
from memprof.views.owners import CATEGORY_NAMES
from memprof.views.window import Window, site_at

__all__ = ["waste_of"]

_LEAST_SHARE = 0.04
"""Of the peak: what is less is not worth a person's time."""
_HIGHER = 1.5
"""Times the peak of later steps, that one before them must be to be looked at by itself."""
_LEAST_OF_SETUP = 0.25
"""Of such a peak, that a change must take off."""
_MOST = 6
_MOST_HOLDERS = 3
_LEAST_HELD = 0.02
"""Of a match's bytes, that one stack made: who holds less is not who holds them."""
_LEAST_SAY = 0.1
"""Likewise, of those who have a say in whether it is meant."""
_OTHER_OPERATORS = 0.75
"""What a change to other operators counts for: one line that says `no_grad` is sooner written."""
_GENERAL = 0.5
"""Likewise of what says less than another."""
_MOSTLY = 0.5
"""Of a match's tensors: with more in another match both are about the same."""


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    """A match of one rule in one window, on its way to a finding."""

    window: Window
    rule: WasteRule[Any]
    match: Match

    @property
    def share(self) -> float:
        """Of the peak: what a change saves, else what it is about."""
        saving = self.match.saving
        return self.window.share(self.match.nbytes if saving is None else saving.bytes)

    @property
    def yields_to_all(self) -> bool:
        """True if its rule only says what the bytes are, not what is wrong."""
        return set(EVERY_OTHER) <= set(self.rule.yields_to)

    @property
    def rank(self) -> tuple[bool, float, bool]:
        """What may be meant comes last; the largest first; of equals, the one that yields last."""
        weight = _OTHER_OPERATORS if self.rule.other_operators else 1.0
        weight = _GENERAL if self.rule.is_general else weight
        return self.match.tentative, -self.share * weight, self.yields_to_all

    def gives_way_to(self, other: _Candidate) -> bool:
        """True if its rule declares that ``other`` says it better, and does so of its tensors."""
        return other.rule.name in self.rule.yields_to and self._shares_most_with(other)

    def adds_nothing_to(self, other: _Candidate) -> bool:
        """True if ``other``, which ranks before it, says it better of most of its tensors.

        What the program needs does not say it better than what is wrong.
        """
        if other.rule.needed and not (self.rule.needed or self.match.tentative):
            return False
        weaker = self.match.tentative or self.yields_to_all
        return weaker and not self.rule.stands_beside and self._shares_most_with(other)

    def _shares_most_with(self, other: _Candidate) -> bool:
        own, others = self.match.rows, other.match.rows
        at_peak = self.window.at_peak
        # Some rules match what there is at the peak alone, others its like in every step as well.
        if at_peak[own].any() and at_peak[others].any():
            own = own[at_peak[own]]
        return len(own) > 0 and bool(np.isin(own, others).mean() > _MOSTLY)


def waste_of(examination: Examination) -> tuple[RuleFinding, ...]:
    """The waste in an examined run, the surest and largest first; at most six a device."""
    selection = [
        candidate
        for window in _peak_windows(examination)
        for candidate in _distinct(_with_setup(window, _candidates(window)))[:_MOST]
    ]
    run = examination.run
    selection = [
        one
        for one in selection
        if not one.rule.is_unfounded(one.match, _holders(one, run, _LEAST_SAY), one.window)
    ]
    held = [(one, _holders(one, run)) for one in selection]
    proven = [(replace(one, match=_proven(one, holders, run)), holders) for one, holders in held]
    return tuple(_finding_of(*one) for one in sorted(proven, key=lambda one: one[0].rank))


def _peak_windows(examination: Examination) -> list[Window]:
    """Of every device the window with its peak."""
    windows = [
        window
        for device in examination.devices
        if (window := device.peak_window) is not None
        and window.line.peak_allocated.bytes
        and len(window.trace.events)
    ]
    host = next((window for window in windows if window.device == "cpu"), None)
    return [window if window is host else replace(window, host=host) for window in windows]


def _candidates(window: Window) -> list[_Candidate]:
    matches: list[_Candidate] = []
    for rule in waste_rules():
        with left_out_if_it_fails(rule.name):
            matches += [_Candidate(window, rule, one) for one in rule.matches(window)]
    return [one for one in matches if one.share >= _LEAST_SHARE]


def _with_setup(window: Window, candidates: list[_Candidate]) -> list[_Candidate]:
    """Those, and what takes much off a higher peak that only comes before the steps.

    Models and data are made there, so no more is told than what is no doubt a mistake.
    """
    whole = replace(window, of_setup=True)
    if not window.first_entry or whole.peak.bytes < _HIGHER * window.peak.bytes:
        return candidates
    names = {one.rule.name for one in candidates}
    return candidates + [
        one
        for one in _candidates(whole)
        if not (one.match.tentative or one.rule.needed or one.rule.name in names)
        and one.match.saving is not None
        and one.share >= _LEAST_OF_SETUP
    ]


def _distinct(candidates: list[_Candidate]) -> list[_Candidate]:
    """Without those that say less of the same tensors than others, or than one before them."""
    remaining = [one for one in candidates if not any(map(one.gives_way_to, candidates))]
    distinct: list[_Candidate] = []
    for one in sorted(remaining, key=lambda one: one.rank):
        if not any(one.adds_nothing_to(other) for other in distinct):
            distinct.append(one)
    return distinct


def _holders(one: _Candidate, run: Run, least: float = _LEAST_HELD) -> tuple[Holder, ...]:
    """Who held such tensors when the job looked, those of the largest first.

    Of tensors of which one stack made the ``least`` share.
    """
    if not one.rule.names_holders:
        return ()
    lives = one.window.lives
    of_stack = np.bincount(lives.stack[one.match.rows], weights=lives.size[one.match.rows])
    stacks = set(np.flatnonzero(of_stack >= least * of_stack.sum()).tolist())
    own = int(lives.stack[one.match.row])
    searches = _searches(one, run, stacks)
    is_known = any(holder.is_named for search in searches for holder in search.holders)
    if not is_known and one.match.made_alike:
        searches = _searches(one, run, set(one.match.made_alike))
    searches.sort(key=lambda search: (search.stack != own, -search.bytes))
    holders: dict[Hashable, Holder] = {}
    for search in searches:
        in_order = sorted(
            search.holders, key=partial(is_cycle_around_bounded, others=search.holders)
        )
        for holder in in_order[:1]:
            holders.setdefault(way(holder.links), holder)  # however long its list was at a look
    return tuple(holders.values())[:_MOST_HOLDERS]


def _searches(one: _Candidate, run: Run, stacks: set[int]) -> list[Finding]:
    """What the job's searches for holders came upon, of tensors that these stacks made."""
    return [
        search
        for search in run.findings
        if search.finding == "holders"
        and search.device == one.window.device
        and search.stack in stacks
    ]


def _proven(one: _Candidate, holders: Sequence[Holder], run: Run) -> Match:
    """The match, no longer tentative where what holds it is nothing that anybody means to.

    And no longer rising where that can hold so much and no more: it only fills up. It is tentative
    where the rule says that the program has a use for what those hold that have most of it.
    """
    if one.match.rises and any(is_kept_short(holder) for holder in holders[:1]):
        return replace(one.match, rises=False)
    if one.rule.is_meant(_holders(one, run, _LEAST_SAY), one.window):
        return replace(one.match, tentative=True)
    if one.match.tentative and one.rule.is_proven(holders):
        return replace(one.match, tentative=False)
    return one.match


def _finding_of(one: _Candidate, holders: tuple[Holder, ...]) -> RuleFinding:
    window, match = one.window, one.match
    origin = window.origin_of(match.row) if match.in_backward_of else None
    line = match.look_at or origin
    share = f" ({format_percent(match.nbytes, window.line.peak_allocated.bytes)} of the peak)"
    if one.rule.kind is Kind.FRAGMENTATION:
        share = ""  # it is of the reserved bytes, which its title tells
    steps = window.made_in[match.rows] if len(match.rows) else np.array([-1])
    allocs = window.lives.alloc[match.rows]
    return RuleFinding(
        kind=one.rule.kind,
        device=window.device,
        site=site_at(line) if line is not None else window.site_of(match.row),
        title=f"{format_bytes(match.nbytes)}{share} {one.rule.title(match)}",
        bytes=int(match.nbytes),
        confidence=confidence_of(tentative=match.tentative),
        first_step=int(steps.min()),
        last_step=int(steps.max()),
        stack=window.stack(match.row) if origin is None else window.origin_stack(match.row),
        module=window.module_name(match.row),
        category=CATEGORY_NAMES[int(window.category[match.row])],
        holders=holders,
        evidence=Evidence(window.number, allocs[allocs >= 0]),
        rule=one.rule.name,
        match=match,
    )
