"""Classes of a program that put small layers beside one that they are given: LoRA by hand."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from memprof.source_code.program import (
    FUNCTIONS,
    Place,
    Program,
    assigned,
    called_name,
    calls_in,
)
from memprof.source_code.scopes import parameters

__all__ = ["Adapter", "adapters_by_hand"]

_ADDING = frozenset(("add", "add_"))
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


def _adds_to(forward: ast.FunctionDef | ast.AsyncFunctionDef, layer: ast.expr) -> bool:
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

    chosen_by = set(parameters(forward)) - {"self"}
    return any(
        any(map(is_result, summands)) and not any(_is_chosen(one, chosen_by) for one in summands)
        for summands in map(_summands, ast.walk(forward))
    )


def _is_chosen(summand: ast.expr, names: Collection[str]) -> bool:
    """Whether it is one of many that the caller chooses, as ``self.up[domain](…)`` of a model."""
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Subscript)
        and isinstance(node.func.slice, ast.Name)
        and node.func.slice.id in names
        for node in ast.walk(summand)
    )


def _summands(node: ast.AST) -> list[ast.expr]:
    """What ``a + b``, ``torch.add(a, b)``, ``a.add(b)`` or ``a += b`` adds; empty for others."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [node.left, node.right]
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        return [node.target, node.value]
    if isinstance(node, ast.Call) and called_name(node) in _ADDING:
        receiver = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        return [*receiver, *node.args]
    return []
