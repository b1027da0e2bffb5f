"""Findings over a whole run: what every rule of ``memprof/rules/whole_run`` matches."""

from __future__ import annotations

from typing import Any

import numpy as np

from memprof.rules.finding import RuleFinding, Series
from memprof.rules.left_out import left_out_if_it_fails
from memprof.rules.load_rules import run_rules
from memprof.rules.rule import confidence_of
from memprof.rules.run_rule import RunMatch, RunRule
from memprof.views.examination import Examination
from memprof.views.trend import LevelRise

__all__ = ["over_run"]


def over_run(examination: Examination) -> tuple[RuleFinding, ...]:
    """The findings of all rules over a whole run, in the order of the rules' names."""
    all_findings: list[RuleFinding] = []
    for rule in run_rules():
        with left_out_if_it_fails(rule.name):
            all_findings += [_finding_of(rule, match) for match in rule.matches(examination)]
    return tuple(all_findings)


def _finding_of(rule: RunRule[Any], match: RunMatch) -> RuleFinding:
    return RuleFinding(
        kind=rule.kind,
        device=match.device,
        site=match.site,
        title=rule.title(match),
        bytes_per_step=match.rise.per_step if match.rise is not None else 0.0,
        bytes=match.nbytes,
        confidence=confidence_of(tentative=match.tentative),
        first_step=match.first_step,
        last_step=match.last_step,
        steps_left=match.steps_left,
        stack=match.stack,
        holders=match.holders,
        hint=rule.hint,
        series=_series(match.rise),
        rule=rule.name,
        match=match,
    )


def _series(rise: LevelRise | None) -> Series | None:
    if rise is None:
        return None
    return Series(rise.steps.astype(np.int64), rise.levels.astype(np.int64))
