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

_Function = ast.FunctionDef | ast.AsyncFunctionDef

_ADDING = frozenset(("add", "add_"))
_PLAIN = frozenset(("Conv1d", "Conv2d", "Conv3d", "Embedding", "Linear"))
"""Layers of torch with a `weight`, of which a class with adapters may be one."""
_OF_WEIGHT = "self.weight"
_MULTIPLYING = frozenset(("bmm", "chain_matmul", "linear", "matmul", "mm", "multi_dot"))
_OF_LOW_RANK = 2
"""Products of what an adapter of low rank has: down, and up again."""
_ZEROS = ("zeros", "zeros_", "zeros_like", "zero_")
"""What an adapter begins with, so that at first it changes nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """Such a class."""

    base: str
    """The attribute that is the layer which it is given: ``base``. Empty where it is that layer."""
    given: str
    """The parameter of ``__init__`` that is bound to it."""
    place: Place
    """The statement that binds it; the one that begins with zeros, where nothing is given."""
    class_name: str


def adapters_by_hand(programs: Sequence[Program]) -> Iterator[Adapter]:
    """Classes whose ``forward`` adds something to ``self.base(x)``, with ``base`` handed in.

    Or hands that to another class which adds something to it; or they are layers themselves, and
    add something to what that computes. Something begins with zeros, as what is trained beside a
    trained layer does.
    """
    for program in programs:
        for class_ in program.classes():
            init, forward = (_method(class_, name) for name in ("__init__", "forward"))
            if init is None or forward is None:
                continue
            yield from _is_itself(program, class_, init, forward)
            begins_with_zeros = bool(_zeros(init))
            begins_with_zeros |= any(map(_zeros, _made_within(program, init)))
            given = set(parameters(init)) if begins_with_zeros else set()
            for node in ast.walk(init):
                for target, bound in assigned(node):
                    value = _layer(bound)
                    if not isinstance(value, ast.Name) or value.id not in given:
                        continue
                    place = program.place(node)
                    if place is None or not _is_own(target):
                        continue
                    if _adds_to(forward, target) or _hands_on(program, init, forward, target):
                        name = ast.unparse(target)[len("self.") :]
                        yield Adapter(name, value.id, place, class_.name)


def _is_itself(
    program: Program,
    class_: ast.ClassDef,
    init: _Function,
    forward: _Function,
) -> Iterator[Adapter]:
    """A class that is a layer of torch's, and adds something to what that would return."""
    zeros = _zeros(init)
    if not zeros or not any(ast.unparse(one).rpartition(".")[2] in _PLAIN for one in class_.bases):
        return
    of_layer = [
        call
        for call in calls_in(forward)
        if ast.unparse(call.func) in ("super().forward", f"super({class_.name}, self).forward")
        or _OF_WEIGHT in map(ast.unparse, call.args)
    ]
    place = program.place(zeros[0])
    if len(of_layer) != 1 or _products(forward, of_layer[0]) < _OF_LOW_RANK:
        return
    if place is not None and _adds(forward, of_layer[0]):
        yield Adapter("", "", place, class_.name)


def _products(forward: _Function, but: ast.Call) -> int:
    """How many matrices a function multiplies by, besides those of one call."""
    calls = [one for one in calls_in(forward) if one is not but]
    of_parts = [one for one in calls if isinstance(one.func, ast.Attribute) and _is_own(one.func)]
    by_operator = [
        node
        for node in ast.walk(forward)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)
    ]
    by_name = [one for one in calls if called_name(one) in _MULTIPLYING]
    return len(of_parts) + len(by_operator) + len(by_name)


def _method(class_: ast.ClassDef, name: str) -> _Function | None:
    methods = (one for one in class_.body if isinstance(one, FUNCTIONS) and one.name == name)
    return next(methods, None)


def _zeros(init: ast.AST) -> list[ast.Call]:
    return calls_in(init, *_ZEROS)


def _made_within(program: Program, init: ast.AST) -> Iterator[_Function]:
    """How the program's own classes begin that a method makes."""
    made = {called_name(call) for call in calls_in(init)}
    inits = (_method(one, "__init__") for one in program.classes() if one.name in made)
    yield from (one for one in inits if one is not None)


def _hands_on(program: Program, init: _Function, forward: _Function, layer: ast.expr) -> bool:
    """Whether what a layer returns is handed to a part that adds something small to it."""
    text = ast.unparse(layer)
    calls = [one for one in calls_in(forward) if ast.unparse(one.func) == text]
    if len(calls) != 1:
        return False
    names = _names_of(forward, calls[0])
    parts = {
        ast.unparse(target): called_name(value)
        for node in ast.walk(init)
        for target, value in assigned(node)
        if isinstance(value, ast.Call)
    }
    takers = {
        parts.get(ast.unparse(call.func), "")
        for call in calls_in(forward)
        if any(one is calls[0] or ast.unparse(one) in names for one in call.args)
    }
    return any(_adds_to_argument(class_) for class_ in program.classes() if class_.name in takers)


def _adds_to_argument(class_: ast.ClassDef) -> bool:
    """Whether ``forward`` returns its argument with something added that begins with zeros."""
    init, forward = (_method(class_, name) for name in ("__init__", "forward"))
    if init is None or forward is None or not _zeros(init):
        return False
    given = [*parameters(forward)][1:2]
    return any(
        any(isinstance(one, ast.Name) and one.id in given for one in _summands(node))
        for node in ast.walk(forward)
    )


def _layer(value: ast.expr | None) -> ast.expr | None:
    """What is bound to a name, where a layer may be frozen on the way."""
    if isinstance(value, ast.Call) and called_name(value) == "requires_grad_":
        return value.func.value if isinstance(value.func, ast.Attribute) else None
    return value


def _is_own(target: ast.expr) -> bool:
    return isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"


def _adds_to(forward: _Function, layer: ast.expr) -> bool:
    """Whether a function adds something else to what a layer returns, at once or by a variable."""
    text = ast.unparse(layer)
    calls = [one for one in calls_in(forward) if ast.unparse(one.func) == text]
    if len(calls) != 1:
        return False
    return _adds(forward, calls[0])


def _names_of(forward: ast.AST, call: ast.Call) -> set[str]:
    """The names that are bound to what a call returns."""
    return {
        ast.unparse(target)
        for node in ast.walk(forward)
        for target, value in assigned(node)
        if value is call
    }


def _adds(forward: _Function, call: ast.Call) -> bool:
    """Whether a function adds something else to what a call returns."""
    names = _names_of(forward, call)

    def is_result(node: ast.expr) -> bool:
        return node is call or (isinstance(node, ast.Name) and node.id in names)

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
