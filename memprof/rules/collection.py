"""Finds the rules in the folders of this package."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from memprof.rules import waste, whole_run
from memprof.rules.rule import WasteRule
from memprof.rules.run_rule import RunRule

__all__ = ["rule_named", "rules", "run_rules", "waste_rules"]


@cache
def waste_rules() -> tuple[WasteRule[Any], ...]:
    """Every rule of ``memprof/rules/waste``, in the order of their names."""
    return tuple(rule for rule in _rules_in(waste) if isinstance(rule, WasteRule))


@cache
def run_rules() -> tuple[RunRule[Any], ...]:
    """Every rule of ``memprof/rules/whole_run``, in the order of their names."""
    return tuple(rule for rule in _rules_in(whole_run) if isinstance(rule, RunRule))


@cache
def rules() -> tuple[WasteRule[Any] | RunRule[Any], ...]:
    """Every rule, in the order of their names."""
    return tuple(sorted((*waste_rules(), *run_rules()), key=lambda rule: rule.name))


def rule_named(name: str) -> WasteRule[Any] | RunRule[Any] | None:
    """The rule of that name; None where there is none."""
    return next((rule for rule in rules() if rule.name == name), None)


def _rules_in(folder: ModuleType) -> list[Any]:
    modules = [
        import_module(f"{folder.__name__}.{found.name}")
        for found in pkgutil.iter_modules(folder.__path__)
    ]
    own = [module.RULE for module in modules if hasattr(module, "RULE")]
    return sorted(own, key=lambda rule: str(rule.name))
