"""Finds the rules in the folders of this package."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from types import ModuleType
from typing import Any

from memprof.rules import growth, waste, whole_run
from memprof.rules.rule import EVERY_OTHER, GrowthRule, Rule, WasteRule
from memprof.rules.run_rule import RunRule

__all__ = [
    "growth_rules",
    "in_order",
    "precedence",
    "rule_named",
    "rules",
    "run_rules",
    "waste_rules",
]


@cache
def waste_rules() -> tuple[WasteRule[Any], ...]:
    """Every rule of ``memprof/rules/waste``, in the order of their names."""
    return tuple(rule for rule in _rules_in(waste) if isinstance(rule, WasteRule))


@cache
def run_rules() -> tuple[RunRule[Any], ...]:
    """Every rule of ``memprof/rules/whole_run``, in the order of their names."""
    return tuple(rule for rule in _rules_in(whole_run) if isinstance(rule, RunRule))


@cache
def growth_rules() -> tuple[GrowthRule[Any], ...]:
    """Every rule of ``memprof/rules/growth``, each after those that it yields to."""
    rules = [rule for rule in _rules_in(growth) if isinstance(rule, GrowthRule)]
    return in_order(rules)


@cache
def rules() -> tuple[Rule, ...]:
    """Every rule, in the order of their names."""
    every = (*waste_rules(), *growth_rules(), *run_rules())
    return tuple(sorted(every, key=lambda rule: rule.name))


def rule_named(name: str) -> Rule | None:
    """The rule of that name; None where there is none."""
    return next((rule for rule in rules() if rule.name == name), None)


def in_order(rules: Iterable[GrowthRule[Any]]) -> tuple[GrowthRule[Any], ...]:
    """The rules, each after all that it yields to; rules that do not compare by their names.

    Raises:
        graphlib.CycleError: rules yield to each other.
    """
    by_name = {rule.name: rule for rule in sorted(rules, key=lambda rule: rule.name)}
    before = {name: sorted(names) for name, names in precedence(by_name.values()).items()}
    return tuple(by_name[name] for name in TopologicalSorter(before).static_order())


def precedence(rules: Iterable[GrowthRule[Any]]) -> dict[str, set[str]]:
    """For each rule, by its name, the names of those that come before it by what rules declare."""
    rules = tuple(rules)
    weak = {rule.name for rule in rules if _yields_to_all(rule)}
    strong = {rule.name for rule in rules} - weak
    before = {rule.name: {*rule.yields_to} & (strong | weak) for rule in rules}
    for name in weak:
        before[name] |= strong
    for rule in rules:
        for name in {*rule.precedes} & before.keys():
            before[name].add(rule.name)
    return before


def _yields_to_all(rule: Rule) -> bool:
    return set(EVERY_OTHER) <= set(rule.yields_to)


def _rules_in(folder: ModuleType) -> list[Rule]:
    modules = [
        import_module(f"{folder.__name__}.{submodule.name}")
        for submodule in pkgutil.iter_modules(folder.__path__)
    ]
    rules: list[Rule] = [module.RULE for module in modules if hasattr(module, "RULE")]
    return sorted(rules, key=lambda rule: rule.name)
