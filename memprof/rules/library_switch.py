"""Switches of a library's classes that have a method work through its argument in parts."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from memprof.source_code.program import (
    FUNCTIONS,
    Program,
    assigned,
    called_name,
    calls_in,
    source_of,
)
from memprof.trace import Frame

__all__ = ["Switch", "switch_to_parts"]

_DIVIDING = frozenset({"chunk", "range", "split", "tensor_split", "unbind"})
"""What a loop over parts goes through."""
_MOST_BASES = 16
"""Classes that are read to find a method."""


@dataclass(frozen=True, slots=True)
class Switch:
    """A method that takes no argument, and what it does to another one."""

    method: str
    """As ``enable_slicing``."""
    class_: str
    function: str
    """The method that then works in parts, as ``decode``."""


def switch_to_parts(frame: Frame) -> Switch | None:
    """Return the switch that has a frame's function call in a loop what it calls here.

    The function asks an attribute of its object; where that is true it calls the same for each
    part. A method of the class, or of one it comes of, that needs no argument sets the attribute.
    """
    program = source_of(frame.filename)
    place = program.at(frame.line) if program is not None else None
    if program is None or place is None or place.function is None or place.class_ is None:
        return None
    here = {called_name(call) for call in calls_in(place.statement)} - {""}
    for branch in (node for node in ast.walk(place.function) if isinstance(node, ast.If)):
        if branch in place.around and place.statement not in _within(branch.orelse):
            continue
        if not here & _called_in_loops(branch.body):
            continue
        for attribute in _own_attributes(branch.test):
            method = _setter(program, place.class_, attribute)
            if method:
                return Switch(method, place.class_.name, place.function.name)
    return None


def _within(statements: list[ast.stmt]) -> list[ast.AST]:
    return [node for statement in statements for node in ast.walk(statement)]


def _called_in_loops(statements: list[ast.stmt]) -> set[str]:
    """The functions called for each part of something."""
    names: set[str] = set()
    for node in _within(statements):
        if isinstance(node, (ast.For, ast.AsyncFor)):
            iterated: list[ast.expr] = [node.iter]
            inner: Sequence[ast.AST] = node.body
        elif isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            iterated, inner = [one.iter for one in node.generators], [node.elt]
        else:
            continue
        if any(calls_in(one, *_DIVIDING) for one in iterated):
            names |= {called_name(call) for one in inner for call in calls_in(one)}
    return names - {""}


def _own_attributes(test: ast.expr) -> Iterator[str]:
    """Attributes of ``self`` that must be true for a test to be."""
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]
    for part in parts:
        if isinstance(part, ast.Attribute) and ast.unparse(part.value) == "self":
            yield part.attr


def _setter(program: Program, class_: ast.ClassDef, attribute: str) -> str:
    """The method that sets an attribute of the object to True; empty where there is none."""
    waiting, read = [(program, class_)], 0
    while waiting and read < _MOST_BASES:
        file, one = waiting.pop(0)
        read += 1
        for method in one.body:
            if isinstance(method, FUNCTIONS) and _sets(method, attribute):
                return method.name
        waiting += [
            (where, base)
            for name in (ast.unparse(base).rpartition(".")[2] for base in one.bases)
            for where, base in _classes(file, name)
        ]
    return ""


def _sets(method: ast.FunctionDef | ast.AsyncFunctionDef, attribute: str) -> bool:
    arguments = method.args
    needed = len(arguments.posonlyargs) + len(arguments.args) - len(arguments.defaults)
    if needed != 1 or None in arguments.kw_defaults or method.name.startswith("_"):
        return False
    return any(
        isinstance(target, ast.Attribute)
        and ast.unparse(target) == f"self.{attribute}"
        and isinstance(value, ast.Constant)
        and value.value is True
        for node in ast.walk(method)
        for target, value in assigned(node)
    )


def _classes(program: Program, name: str) -> Iterator[tuple[Program, ast.ClassDef]]:
    """Classes of a name in a file, else in the files of its package that it takes the name from."""
    own = [one for one in program.classes() if one.name == name]
    if own:
        yield program, own[0]
        return
    for node in program.nodes:
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        if name not in {alias.asname or alias.name for alias in node.names}:
            continue
        folder = Path(program.filename).parents[node.level - 1]
        path = folder.joinpath(*(node.module or "").split("."))
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            there = source_of(str(file))
            for one in there.classes() if there is not None else ():
                if one.name == name and there is not None:
                    yield there, one
