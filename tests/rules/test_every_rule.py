"""Every rule fires on a program that has its mistake, and is silent on one that looks alike."""

from __future__ import annotations

import re
from graphlib import TopologicalSorter
from importlib import import_module
from itertools import pairwise

import pytest

pytest.importorskip("torch", reason="the programs train")

from memprof.loading import load
from memprof.rules.case import Case
from memprof.rules.fixes import FIXES
from memprof.rules.load_rules import growth_rules, in_order, precedence, rules
from memprof.rules.pages import page
from memprof.rules.rule import EVERY_OTHER, WasteRule
from memprof.rules.same_memory import ANY_GROWTH, ANY_WASTE
from memprof.views.examination import examine
from tests.rules.recorded import findings_of, findings_of_fork, named_by, names

RULES = {rule.name: rule for rule in rules()}
OF_SOURCES = ("unread-entries",)
"""Rules about what no file of a program reads: files of the tests around it may."""
PARTS = ["The pattern", "Why it costs memory", "How memprof knows", "What to change"]


def programs_of(rule: str):
    return import_module(f"tests.rules.test_{rule.replace('-', '_')}")


@pytest.mark.parametrize("rule", RULES)
def test_it_fires_where_its_mistake_is_and_advises_its_fixes(rule, tmp_path):
    alone = RULES[rule] in growth_rules() or rule in OF_SOURCES
    made = findings_of_fork if alone else findings_of
    found = made(programs_of(rule).fires, tmp_path / "run.json")
    advised = [r.fix for one in found for r in one.remedies if r.rule == rule]
    assert rule in {name for one in found for name in named_by(one)}
    assert list(undeclared(found, load(tmp_path / "run.json"))) == []
    assert bool(advised) == bool(RULES[rule].fixes)
    assert set(advised) <= set(RULES[rule].fixes)


def undeclared(found, run):
    """Pairs of rules that explain the same growth, of which none says which one comes first."""
    before = precedence(growth_rules())

    def precedes(first, second):
        return first in before[second] or any(precedes(first, one) for one in before[second])

    for one in found:
        case = Case(one, examine(run))
        causes = [rule.name for rule in growth_rules() if case.grows and rule.match(case)]
        for first, second in pairwise(causes):
            if not precedes(first, second):
                yield first, second


@pytest.mark.parametrize("rule", RULES)
def test_it_is_silent_where_it_only_looks_so(rule, tmp_path):
    assert rule not in names(programs_of(rule).looks_alike, tmp_path / "run.json")


@pytest.mark.parametrize("rule", RULES)
def test_its_page_has_four_parts_and_leads_to_every_fix(rule):
    text = page(rule)
    assert text.startswith(f"# `{rule}`: {RULES[rule].summary}\n")
    assert re.findall(r"^## (.*)$", text, flags=re.MULTILINE) == PARTS
    assert set(re.findall(r"\.\./fixes/(\w+)\.md", text)) == set(RULES[rule].fixes) <= set(FIXES)


def test_causes_of_growth_come_after_those_that_they_yield_to():
    order = [rule.name for rule in growth_rules()]
    for rule in growth_rules():
        assert all(
            order.index(name) < order.index(rule.name) for name in rule.yields_to if name != "*"
        )
    assert in_order(reversed(growth_rules())) == growth_rules()


def stronger(rule) -> tuple[str, ...]:
    """The rules that a rule declares to yield to."""
    return (*rule.yields_to, *(rule.yields_beyond if isinstance(rule, WasteRule) else ()))


def test_rules_yield_to_rules_that_there_are():
    named = {name for rule in RULES.values() for name in stronger(rule)}
    named |= {name for rule in growth_rules() for name in rule.precedes}
    assert named <= {*EVERY_OTHER, ANY_GROWTH, ANY_WASTE, *RULES}


def test_no_rules_yield_to_each_other():
    single = {name: {*stronger(rule)} & {*RULES} for name, rule in RULES.items()}
    assert [*TopologicalSorter(single).static_order()]
