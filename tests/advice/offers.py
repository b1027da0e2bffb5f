"""Which rules of `memprof.advice` offer a patch: read from their source, and seen at work."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

import memprof.advice
from memprof.advice.vocabulary import FIXES

FOLDER = Path(memprof.advice.__file__).parent


def offered() -> set[tuple[str, str]]:
    """Fix and rule, for every `Proposal` in the source that may bear a patch."""
    return {
        (fix, function.name)
        for module, tree in _rooms()
        for function in _functions(tree)
        for call in _patched(function)
        for fix in _fixes(call.args[0], function, tree)
    }


@contextmanager
def watched() -> Iterator[dict[tuple[str, str], str]]:
    """The rule that made a patch, by fix and patch, for what is advised meanwhile."""
    seen: dict[tuple[str, str], str] = {}
    with pytest.MonkeyPatch.context() as patch:
        for module, tree in _rooms():
            for function in _functions(tree):
                if any(_patched(function)):
                    rule = getattr(module, function.name)
                    patch.setattr(module, function.name, _watching(rule, seen))
        yield seen


def _watching(rule: Callable[..., Iterator], seen: dict) -> Callable[..., Iterator]:
    def watching(*arguments):
        for proposal in rule(*arguments):
            if proposal.patch:
                seen.setdefault((proposal.fix, proposal.patch), rule.__name__)
            yield proposal

    return watching


def _rooms() -> Iterator[tuple[ModuleType, ast.Module]]:
    for path in sorted(FOLDER.glob("*.py")):
        if path.stem != "__init__":
            module = importlib.import_module(f"memprof.advice.{path.stem}")
            yield module, ast.parse(path.read_text())


def _functions(tree: ast.Module) -> list[ast.FunctionDef]:
    return [node for node in tree.body if isinstance(node, ast.FunctionDef)]


def _patched(function: ast.FunctionDef) -> Iterator[ast.Call]:
    """Calls that make a `Proposal` with a patch, named or as the sixth argument."""
    for node in ast.walk(function):
        made = isinstance(node, ast.Call) and ast.unparse(node.func) == "Proposal"
        if made and (len(node.args) > 5 or any(k.arg == "patch" for k in node.keywords)):
            yield node


def _fixes(fix: ast.expr, function: ast.FunctionDef, tree: ast.Module) -> set[str]:
    """The fix as written, or those of the functions that a rule takes its fixes from."""
    if isinstance(fix, ast.Constant):
        return {fix.value}
    called = {ast.unparse(n.func) for n in ast.walk(function) if isinstance(n, ast.Call)}
    inside = [other for other in _functions(tree) if other.name in called]
    constants = [n for one in inside for n in ast.walk(one) if isinstance(n, ast.Constant)]
    return {n.value for n in constants if n.value in FIXES}
