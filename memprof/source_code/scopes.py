"""The syntax of a program's files, laid out for what follows values through them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from memprof.source_code.program import FUNCTIONS, Program, called_name

__all__ = ["BINDING", "LOOPING", "Scopes", "Syntax", "parameters", "syntax_of"]

Scopes = tuple[ast.AST, ...]
"""The functions around a node, outermost first."""
LOOPING = (ast.For, ast.AsyncFor, ast.comprehension)
BINDING = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)


@dataclass(eq=False)
class Syntax:
    """The syntax of some files, as many flows look at it."""

    programs: Sequence[Program]

    @cached_property
    def nodes(self) -> list[tuple[ast.AST, Scopes]]:
        """Every node with the functions around it, outermost first."""
        return [pair for program in self.programs for pair in _walked(program.tree, ())]

    @cached_property
    def passing(self) -> list[tuple[ast.AST, Scopes]]:
        """The nodes that may hand a value on."""
        kinds = (*BINDING, *LOOPING, ast.Return, ast.Yield, ast.YieldFrom, ast.Call)
        return [pair for pair in self.nodes if isinstance(pair[0], kinds)]

    @cached_property
    def functions(self) -> dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]]:
        """By name; a class stands for its ``__init__``."""
        found: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
        for node, _ in self.nodes:
            if isinstance(node, FUNCTIONS):
                found.setdefault(node.name, []).append(node)
            if isinstance(node, ast.ClassDef):
                made = [n for n in node.body if isinstance(n, FUNCTIONS) and n.name == "__init__"]
                found.setdefault(node.name, []).extend(made)
        return found

    @cached_property
    def called(self) -> set[str]:
        """The last names of all that is called."""
        return {called_name(node) for node, _ in self.passing}

    @cached_property
    def of_torch(self) -> set[str]:
        """Names that torch or a part of it is imported by."""
        found: set[str] = set()
        for node, _ in self.nodes:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                of = getattr(node, "module", None)
                names = [(of or a.name, a.asname or a.name) for a in node.names]
                found |= {name.split(".")[0] for of, name in names if of.startswith("torch")}
        return found | {"torch"}

    @cached_property
    def bound(self) -> dict[int, set[str]]:
        """The variables of every function."""
        found: dict[int, set[str]] = {}
        outer: dict[int, set[str]] = {}
        for node, scopes in self.nodes:
            for function in scopes[-1:]:
                names = found.setdefault(id(function), set(parameters(function)))
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    names.add(node.id)
                if isinstance(node, (ast.Global, ast.Nonlocal)):
                    outer.setdefault(id(function), set()).update(node.names)
        return {scope: names - outer.get(scope, set()) for scope, names in found.items()}


@lru_cache(maxsize=4)
def syntax_of(programs: tuple[Program, ...]) -> Syntax:
    """The syntax of these files, read once for all flows through them."""
    return Syntax(programs)


def _walked(node: ast.AST, scopes: Scopes) -> Iterator[tuple[ast.AST, Scopes]]:
    waiting = [(node, scopes)]
    while waiting:
        node, scopes = waiting.pop()
        yield node, scopes
        inner = (*scopes, node) if isinstance(node, FUNCTIONS) else scopes
        waiting += [(child, inner) for child in ast.iter_child_nodes(node)]


def parameters(function: ast.AST) -> Iterator[str]:
    """The names of a function's parameters."""
    if not isinstance(function, FUNCTIONS):
        return
    spec = function.args
    named = (*spec.posonlyargs, *spec.args, *spec.kwonlyargs, spec.vararg, spec.kwarg)
    yield from (one.arg for one in named if one is not None)
