"""Classes of a program that put small layers beside one that they are given: LoRA by hand."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memprof.source_code.program import (
    FUNCTIONS,
    Place,
    Program,
    assigned,
    calls_in,
)
from memprof.source_code.scopes import parameters

__all__ = ["Adapter", "adapters_by_hand"]

_ZEROS = ("zeros", "zeros_", "zeros_like", "zero_")
"""What an adapter begins with, so that at first it changes nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """Such a class."""

    base: str
    """The attribute that is the layer which it is given: ``base``."""
    given: str
    """The parameter of ``__init__`` that is bound to it."""
    place: Place
    """The statement that binds it."""


def adapters_by_hand(programs: Sequence[Program]) -> Iterator[Adapter]:
    """Classes whose ``forward`` adds something to ``self.base(x)``, with ``base`` handed in.

    Something of the class begins with zeros, as what is trained beside a trained layer does.
    """
    for program in programs:
        for class_ in program.classes():
            methods = {one.name: one for one in class_.body if isinstance(one, FUNCTIONS)}
            init, forward = methods.get("__init__"), methods.get("forward")
            if init is None or forward is None or not calls_in(init, *_ZEROS):
                continue
            given = set(parameters(init))
            for node in ast.walk(init):
                for target, value in assigned(node):
                    if not isinstance(value, ast.Name) or value.id not in given:
                        continue
                    place = program.place(node)
                    if _is_own(target) and place is not None and _adds_to(forward, target):
                        yield Adapter(ast.unparse(target)[len("self.") :], value.id, place)


def _is_own(target: ast.expr) -> bool:
    return isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"


def _adds_to(forward: ast.AST, layer: ast.expr) -> bool:
    """Whether a function adds something else to what a layer returns, at once or by a variable."""
    text = ast.unparse(layer)
    calls = [one for one in calls_in(forward) if ast.unparse(one.func) == text]
    if len(calls) != 1:
        return False
    names = {
        ast.unparse(target)
        for node in ast.walk(forward)
        for target, value in assigned(node)
        if value is calls[0]
    }

    def is_result(node: ast.expr) -> bool:
        return node is calls[0] or (isinstance(node, ast.Name) and node.id in names)

    sums = [n for n in ast.walk(forward) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Add)]
    return any(is_result(one.left) or is_result(one.right) for one in sums)
