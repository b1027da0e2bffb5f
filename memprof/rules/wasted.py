"""The waste in a run: every rule over every device, the surest and largest first."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from memprof.analysis.churn import churn
from memprof.analysis.doubled import doubled
from memprof.analysis.findings import Evidence, Found, Kind
from memprof.analysis.frozen import frozen
from memprof.analysis.large import large
from memprof.analysis.lingering import lingering
from memprof.analysis.peaks import peaks
from memprof.analysis.suspicion import Pattern, Suspicion
from memprof.records import Holder
from memprof.reference_chain import Link, way
from memprof.rules.collection import waste_rules
from memprof.rules.rule import EVERY_OTHER, Match
from memprof.run import Run
from memprof.units import format_bytes, format_percent
from memprof.views.examination import Examination
from memprof.views.owners import CATEGORY_NAMES
from memprof.views.window import Window

__all__ = ["waste_of"]

_LEAST_SHARE = 0.04
"""Of the peak: what is less is not worth a person's time."""
_MOST = 6
_MOST_HOLDERS = 3
_MOSTLY = 0.5
"""Of a match's tensors: with more in another match both are about the same."""
_TENTATIVE, _LESS = 0.5, 0.6
_SURE, _UNSURE = 0.8, 0.4
"""Confidence of what is waste, and of what may be meant; only growth has a measured one."""
_HELD = (
    Pattern.LINGERING,
    Pattern.JOINED,
)
"""Patterns of which it matters who holds the tensors."""
_DETECTORS: tuple[Callable[[Window], Iterator[Suspicion]], ...] = (
    lingering,
    frozen,
    peaks,
    doubled,
    large,
    churn,
)


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    """A match of one rule in one window, on its way to a finding."""

    window: Window
    rule: str
    match: Match
    title: str
    kind: Kind = Kind.WASTE
    names_holders: bool = False
    yields_to: tuple[str, ...] = ()
    stands_beside: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """Of the peak: what a change saves, else what it is about."""
        saving = self.match.saving
        return self.window.share(self.match.nbytes if saving is None else saving.bytes)

    @property
    def rank(self) -> tuple[bool, float]:
        """What may be meant comes last; among the others the largest comes first."""
        return self.match.tentative, -self.share

    def adds_nothing_to(self, other: _Candidate) -> bool:
        """True if ``other``, which ranks before it, says it better of most of its tensors."""
        rows = self.match.rows
        if self.stands_beside:
            return False
        weaker = self.match.tentative or self.yields_to == EVERY_OTHER
        weaker = weaker or other.rule in self.yields_to
        return weaker and len(rows) > 0 and np.isin(rows, other.match.rows).mean() > _MOSTLY


def waste_of(examination: Examination) -> tuple[Found, ...]:
    """The waste in an examined run, the surest and largest first; at most six a device."""
    chosen = [
        candidate
        for window in _peak_windows(examination)
        for candidate in _distinct(_candidates(window))[:_MOST]
    ]
    return tuple(_found(one, examination.run) for one in sorted(chosen, key=lambda one: one.rank))


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
    found = [_of_suspicion(window, one) for detect in _DETECTORS for one in detect(window)]
    found += [
        _Candidate(
            window,
            rule.name,
            match,
            rule.title(match),
            rule.kind,
            rule.names_holders,
            rule.yields_to,
            rule.stands_beside,
        )
        for rule in waste_rules()
        for match in rule.matches(window)
    ]
    return [one for one in found if one.share >= _LEAST_SHARE]


def _of_suspicion(window: Window, one: Suspicion) -> _Candidate:
    """What a detector that is no rule yet hands back, as a candidate."""
    match = Match(one.row, one.rows, one.nbytes, one.saving, tentative=one.certainty < _TENTATIVE)
    holes = one.pattern is Pattern.FRAGMENTATION
    yields_to = EVERY_OTHER if one.certainty < _LESS else ()
    return _Candidate(
        window,
        one.pattern.value.replace("_", "-"),
        match,
        one.what,
        Kind.FRAGMENTATION if holes else Kind.WASTE,
        one.pattern in _HELD,
        yields_to,
        facts={"pattern": one.pattern.value, **one.facts},
    )


def _distinct(candidates: list[_Candidate]) -> list[_Candidate]:
    """Without those that say less of the same tensors than one before them."""
    distinct: list[_Candidate] = []
    for one in sorted(candidates, key=lambda one: one.rank):
        if not any(one.adds_nothing_to(other) for other in distinct):
            distinct.append(one)
    return distinct


def _holders(one: _Candidate, run: Run) -> tuple[Holder, ...]:
    """Who held such tensors when the job looked, those of the largest first."""
    if not one.names_holders:
        return ()
    lives = one.window.lives
    stacks = {int(s) for s in lives.stack[one.match.rows]}
    own = int(lives.stack[one.match.row])
    searches = [
        search
        for search in run.findings
        if search.finding == "holders"
        and search.device == one.window.device
        and search.stack in stacks
    ]
    searches.sort(key=lambda search: (search.stack != own, -search.bytes))
    holders = {_as_it_was(h.links): h for search in searches for h in search.holders[:1]}
    return tuple(holders.values())[:_MOST_HOLDERS]


def _as_it_was(links: Sequence[Link]) -> Hashable:
    """What two looks at one chain have in common, if no container grew between them."""
    return way(links), tuple(link.length for link in links)


def _found(one: _Candidate, run: Run) -> Found:
    window, match = one.window, one.match
    share = format_percent(match.nbytes, window.peak.bytes)
    steps = window.made_in[match.rows] if len(match.rows) else np.array([-1])
    made = window.lives.alloc[match.rows]
    return Found(
        kind=one.kind,
        device=window.device,
        site=window.site_of(match.row),
        title=f"{format_bytes(match.nbytes)} ({share} of the peak) {one.title}",
        bytes=int(match.nbytes),
        confidence=_UNSURE if match.tentative else _SURE,
        first_step=int(steps.min()),
        last_step=int(steps.max()),
        stack=window.stack(match.row),
        module=window.module_name(match.row),
        category=CATEGORY_NAMES[int(window.category[match.row])],
        holders=_holders(one, run),
        evidence=Evidence(window.number, made[made >= 0], one.facts),
        rule=one.rule,
        match=match,
    )
