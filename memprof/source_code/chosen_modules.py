"""Modules that are all called with the same, of which a choice then uses a few for each row."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from memprof.source_code.program import (
    FUNCTIONS,
    Place,
    Program,
    assigned,
    called_name,
    calls_in,
    loaded_names,
)
from memprof.source_code.scopes import nodes_around, reads_of

__all__ = ["ChosenModules", "chosen_modules"]

_CHOOSING = ("topk", "argmax")
_ONE = "argmax"
_OF_ALL = ("mean", "sum")
"""What takes all results together, before anything is chosen."""
_TAKING = (ast.Mult, ast.Div, ast.MatMult)
_AROUND = ("enumerate", "zip", "reversed", "list")
"""What is around the modules where a loop goes through them."""


@dataclass(frozen=True, slots=True, eq=False)
class ChosenModules:
    """A loop that calls every module of a list, and the choice of a few of them."""

    modules: str
    """As written: ``self.experts``."""
    given: str
    """What each is called with."""
    call: Place
    """The statement that calls them."""
    choice: Place
    """The statement that chooses."""
    chooses_one: bool = False


def chosen_modules(program: Program) -> Iterator[ChosenModules]:
    """``[expert(x) for expert in self.experts]`` beside a ``topk``, of whose results each use is.

    A use of what the modules made is together with what was chosen, or follows from it: a gather,
    or a product with weights. What each is given follows from no choice.
    """
    for function in (node for node in program.nodes if isinstance(node, FUNCTIONS)):
        calls = [(call, modules, program.place(call)) for call, modules in _calls_of_each(function)]
        if not calls:
            continue
        for begins, choosing in _choices(program, function):
            choice = program.place(choosing)
            chosen = _follows(function, begins.statement)
            for call, modules, at in calls:
                if choice is None or at is None or loaded_names(call) & chosen:
                    continue
                if at.function is function and _is_used_by_choice(
                    function, call, at.statement, chosen
                ):
                    is_one = called_name(choosing) == _ONE
                    given = ast.unparse(call.args[0])
                    yield ChosenModules(ast.unparse(modules), given, at, choice, is_one)
                    break


def _choices(program: Program, function: ast.AST) -> Iterator[tuple[Place, ast.Call]]:
    """The statements of a function that choose, each with the call that does.

    That may be in a method that they call, or in the `forward` of a module of the same file.
    """
    for call in calls_in(function):
        at = program.place(call)
        if at is None or at.function is not function:
            continue
        if called_name(call) in _CHOOSING:
            yield at, call
        elif isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "self":
            for method in _methods(program, at.class_, call.func):
                yield from ((at, choosing) for choosing in calls_in(method, *_CHOOSING)[:1])


def _methods(
    program: Program, class_: ast.ClassDef | None, called: ast.Attribute
) -> Iterator[ast.AST]:
    """A class's method of that name, and `forward` of what it binds to an attribute of it.

    Or a class of the same file that it derives from.
    """
    classes = {one.name: one for one in program.classes()}
    bases = [classes[base.id] for base in getattr(class_, "bases", ()) if _is_one_of(base, classes)]
    for node in (one for root in [class_, *bases] if root is not None for one in ast.walk(root)):
        if isinstance(node, FUNCTIONS) and getattr(node, "name", "") == called.attr:
            yield node
        for target, value in assigned(node):
            if ast.unparse(target) != ast.unparse(called) or value is None:
                continue
            other = classes.get(called_name(value))
            for one in other.body if other is not None else ():
                if isinstance(one, FUNCTIONS) and getattr(one, "name", "") == "forward":
                    yield one


def _is_one_of(base: ast.expr, classes: Mapping[str, ast.ClassDef]) -> bool:
    return isinstance(base, ast.Name) and base.id in classes


def _calls_of_each(function: ast.AST) -> Iterator[tuple[ast.Call, ast.Attribute]]:
    """The calls of a loop's variable with one thing, where the loop goes through an attribute."""
    for node in ast.walk(function):
        if not isinstance(node, (ast.For, ast.comprehension)):
            continue
        iterated = node.iter
        while isinstance(iterated, ast.Call) and called_name(iterated) in _AROUND and iterated.args:
            iterated = iterated.args[0]
        if not isinstance(iterated, ast.Attribute):
            continue
        names = {one.id for one in ast.walk(node.target) if isinstance(one, ast.Name)}
        for call in calls_in(function):
            if isinstance(call.func, ast.Name) and call.func.id in names and len(call.args) == 1:
                yield call, iterated


def _follows(function: ast.AST, choice: ast.stmt) -> set[str]:
    """The names that what a statement chooses goes into, by assignments and methods."""
    names = {one.id for target, _ in assigned(choice) for one in _names(target)}
    while True:
        more = set(names)
        for node in ast.walk(function):
            for target, value in assigned(node):
                if value is not None and loaded_names(value) & names:
                    more |= {one.id for one in _names(target)}
            for target, value in _gone_through(node):
                if loaded_names(value) & names:
                    more |= {one.id for one in _names(target)}
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                call = node.value  # gates.scatter_(1, chosen, weight)
                if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name):
                    given = set().union(*(loaded_names(one) for one in call.args))
                    more |= {call.func.value.id} if given & names else set()
        if more == names:
            return names
        names = more


def _gone_through(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What a loop binds, each with what it goes through: of a ``zip`` one by one."""
    if not isinstance(node, (ast.For, ast.comprehension)):
        return
    waiting: list[tuple[ast.expr, ast.expr]] = [(node.target, node.iter)]
    while waiting:
        target, iterated = waiting.pop()
        parts = target.elts if isinstance(target, ast.Tuple) else []
        given = iterated.args if isinstance(iterated, ast.Call) else []
        if called_name(iterated) == "zip" and len(parts) == len(given):
            waiting += zip(parts, given, strict=True)
        elif called_name(iterated) == "enumerate" and parts and given:
            waiting.append((parts[-1], given[0]))
        else:
            yield target, iterated


def _names(target: ast.AST) -> list[ast.Name]:
    """The variables that a target binds; none of ``self.load``, but the list of ``rows[0]``."""
    if isinstance(target, ast.Subscript):
        return _names(target.value) or [one for one in [target.value] if isinstance(one, ast.Name)]
    return [
        one
        for one in ast.walk(target)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
    ]


def _is_used_by_choice(
    function: ast.AST, call: ast.Call, made_by: ast.stmt, chosen: set[str]
) -> bool:
    """Whether all that reads what a call made, by whatever name, takes what was chosen to it."""
    if _is_taken_to(made_by, call, chosen):
        return True
    if not isinstance(made_by, ast.Assign):
        return False
    waiting = _bound_by(made_by)
    names: set[str] = set()
    is_used = False
    while waiting:
        name = waiting.pop()
        reads = [] if name in names else list(reads_of(function, name))
        names.add(name)
        for read, around in reads:
            by = next(one for one in reversed(around) if isinstance(one, ast.stmt))
            items = _items(read, around)
            if items:
                waiting += items
            elif _is_taken_to(by, read, chosen):
                is_used = True
            elif isinstance(by, ast.Assign) and not loaded_names(by.value) & chosen:
                waiting += _bound_by(by)  # by another name
            elif by is not made_by:
                return False
    return is_used


def _bound_by(statement: ast.stmt) -> list[str]:
    return [one.id for target, _ in assigned(statement) for one in _names(target)]


def _items(read: ast.Name, around: list[ast.AST]) -> list[str]:
    """The variable that a loop binds to each item of a list that it goes through; else empty.

    ``made`` of ``sum(gates[:, i] * made for i, made in enumerate(outputs))``.
    """
    value: ast.AST = read
    places: list[int] = []
    for outer in reversed(around):
        if isinstance(outer, (ast.For, ast.comprehension)):
            target: ast.expr | None = outer.target if outer.iter is value else None
            for at in reversed(places):
                parts = target.elts if isinstance(target, ast.Tuple) else []
                target = parts[at] if at < len(parts) else None
            return [target.id] if isinstance(target, ast.Name) else []
        if not isinstance(outer, ast.Call) or called_name(outer) not in _AROUND:
            return []
        if called_name(outer) == "enumerate":
            places.append(1)
        elif called_name(outer) == "zip":
            places.append(next((at for at, one in enumerate(outer.args) if one is value), 0))
        value = outer
    return []


def _is_taken_to(statement: ast.stmt, node: ast.expr, chosen: set[str]) -> bool:
    """Whether the least expression that has a node and something chosen multiplies, or calls."""
    for around in reversed(nodes_around(statement, node)):
        others = loaded_names(around) - ({node.id} if isinstance(node, ast.Name) else set())
        if others & chosen:
            is_product = isinstance(around, ast.BinOp) and isinstance(around.op, _TAKING)
            return is_product or isinstance(around, (ast.Call, ast.Subscript))
        if called_name(around) in _OF_ALL:
            return False
    return False
