"""Finds the rules in the folders of this package."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from typing import Any

from memprof.rules import waste
from memprof.rules.rule import Match, WasteRule

__all__ = ["rule_named", "waste_rules"]


@cache
def waste_rules() -> tuple[WasteRule[Any], ...]:
    """Every rule of ``memprof/rules/waste``, in the order of their names."""
    modules = [
        import_module(f"{waste.__name__}.{found.name}")
        for found in pkgutil.iter_modules(waste.__path__)
    ]
    rules: list[WasteRule[Any]] = [m.RULE for m in modules if hasattr(m, "RULE")]
    return tuple(sorted(rules, key=lambda rule: rule.name))


def rule_named(name: str) -> WasteRule[Match] | None:
    """The rule of that name; None where there is none."""
    return next((rule for rule in waste_rules() if rule.name == name), None)
