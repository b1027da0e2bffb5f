"""Which rules offer a patch: read from their source, and observed at work.

A rule goes by its name; what several rules share, by the function that makes it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest

from memprof.rules import (
    autocast_regions,
    graph_lines,
    references,
    small_views,
    stored_contexts,
    stored_exceptions,
)
from memprof.rules.fixes import FIXES
from memprof.rules.load_rules import rules

_PATCH = 4
"""The place of the patch among the arguments of `Advice`."""
_SHARED = (autocast_regions, graph_lines, small_views, stored_contexts, stored_exceptions)
"""Modules whose advice several rules give."""


def offered() -> set[tuple[str, str]]:
    """Fix and rule, for everything in the source that may bear a patch."""
    shared = {
        (fix, function.name)
        for module, tree in _rooms()
        for function in _functions(tree)
        for fix in _fixes_with_patch(function, tree)
    }
    # What a rule hands on from there has no fix of its own here.
    of_rules = {
        (fix, rule.name)
        for rule in rules()
        for tree in [_tree(_module_of(rule))]
        for function in _functions(tree)
        for fix in _fixes_with_patch(function, tree)
    }
    return shared | of_rules


@contextmanager
def watched() -> Iterator[dict[tuple[str, str], str]]:
    """The rule that made a patch, by fix and patch, for what is advised meanwhile."""
    makers: dict[tuple[str, str], str] = {}
    with pytest.MonkeyPatch.context() as patch:
        importing = [references, *map(_module_of, rules())]
        for module, tree in _rooms():
            for function in _functions(tree):
                if any(_patched(function)):
                    family = getattr(module, function.name)
                    watching = _watching(family, function.name, makers)
                    patch.setattr(module, function.name, watching)
                    for user in importing:
                        if getattr(user, function.name, None) is family:
                            patch.setattr(user, function.name, watching)
        for rule in rules():
            advice = _watching(type(rule).advice, rule.name, makers)
            patch.setattr(type(rule), "advice", advice)
        yield makers


def _watching(advice: Callable[..., Iterator], name: str, makers: dict) -> Callable[..., Iterator]:
    def watching(*arguments, **options):
        for change in advice(*arguments, **options):
            if change.patch:
                makers.setdefault((change.fix, change.patch), name)
            yield change

    return watching


def _module_of(rule: object) -> ModuleType:
    return importlib.import_module(type(rule).__module__)


def _rooms() -> Iterator[tuple[ModuleType, ast.Module]]:
    for module in _SHARED:
        yield module, _tree(module)


def _tree(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def _functions(tree: ast.Module) -> list[ast.FunctionDef]:
    """The functions of a module and the methods of its classes."""
    bodies = [tree.body, *(node.body for node in tree.body if isinstance(node, ast.ClassDef))]
    return [node for body in bodies for node in body if isinstance(node, ast.FunctionDef)]


def _patched(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls that make advice with a patch: named, or as the argument at its place."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or ast.unparse(node.func) != "Advice":
            continue
        if len(node.args) > _PATCH or any(k.arg == "patch" for k in node.keywords):
            yield node


def _fixes_with_patch(function: ast.FunctionDef, tree: ast.Module) -> set[str]:
    return {fix for call in _patched(function) for fix in _fixes(call.args[0], function, tree)}


def _fixes(fix: ast.expr, function: ast.FunctionDef, tree: ast.Module) -> set[str]:
    """The fix as written, or those of the functions that a rule takes its fixes from."""
    if isinstance(fix, ast.Constant):
        return {fix.value}
    called = {ast.unparse(n.func) for n in ast.walk(function) if isinstance(n, ast.Call)}
    inside = [other for other in _functions(tree) if other.name in called]
    constants = [n for one in inside for n in ast.walk(one) if isinstance(n, ast.Constant)]
    return {n.value for n in constants if n.value in FIXES}
