"""Every rule fires on a program that has its mistake, and is silent on one that looks alike."""

from __future__ import annotations

import re
from graphlib import TopologicalSorter
from importlib import import_module

import pytest

pytest.importorskip("torch", reason="the programs train")

from memprof.advice.vocabulary import FIXES
from memprof.rules.collection import rules
from memprof.rules.overlap import ANY_GROWTH, ANY_WASTE
from memprof.rules.pages import page
from memprof.rules.rule import EVERY_OTHER, WasteRule
from tests.rules.recorded import findings_of, names

RULES = {rule.name: rule for rule in rules()}
PARTS = ["The pattern", "Why it costs memory", "How memprof knows", "What to change"]


def programs_of(rule: str):
    return import_module(f"tests.rules.test_{rule.replace('-', '_')}")


@pytest.mark.parametrize("rule", RULES)
def test_it_fires_where_its_mistake_is_and_advises_its_fixes(rule, tmp_path):
    found = [
        one
        for one in findings_of(programs_of(rule).fires, tmp_path / "run.json")
        if one.rule == rule
    ]
    assert found
    assert bool(found[0].remedies) == bool(RULES[rule].fixes)
    assert {remedy.fix for one in found for remedy in one.remedies} <= set(RULES[rule].fixes)


@pytest.mark.parametrize("rule", RULES)
def test_it_is_silent_where_it_only_looks_so(rule, tmp_path):
    assert rule not in names(programs_of(rule).looks_alike, tmp_path / "run.json")


@pytest.mark.parametrize("rule", RULES)
def test_its_page_has_four_parts_and_leads_to_every_fix(rule):
    text = page(rule)
    assert text.startswith(f"# `{rule}`: {RULES[rule].summary}\n")
    assert re.findall(r"^## (.*)$", text, flags=re.MULTILINE) == PARTS
    assert set(re.findall(r"\.\./fixes/(\w+)\.md", text)) == set(RULES[rule].fixes) <= set(FIXES)


def stronger(rule) -> tuple[str, ...]:
    """The rules that a rule declares to yield to."""
    return (*rule.yields_to, *(rule.yields_beyond if isinstance(rule, WasteRule) else ()))


def test_rules_yield_to_rules_that_there_are():
    names = {name for rule in RULES.values() for name in stronger(rule)}
    assert names <= {*EVERY_OTHER, ANY_GROWTH, ANY_WASTE, *RULES}


def test_no_rules_yield_to_each_other():
    single = {name: {*stronger(rule)} & {*RULES} for name, rule in RULES.items()}
    assert [*TopologicalSorter(single).static_order()]
