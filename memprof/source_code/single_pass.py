"""Loops that go once through what was collected, and could do their work as items come."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence

from memprof.source_code.container_reads import (
    fills,
    is_asked_for,
    is_measured,
    reads_of_container,
)
from memprof.source_code.program import (
    FUNCTIONS,
    Place,
    Program,
    arguments,
    called_name,
    calls_in,
    loaded_names,
)
from memprof.source_code.scopes import parameters, qualified_name
from memprof.source_code.verbs import FILLING

__all__ = ["single_pass"]

_LEAVING = (ast.Break, ast.Return, ast.Yield, ast.YieldFrom, ast.Await)
_BESIDE = frozenset(("enumerate", "zip"))
_LIBRARIES = frozenset(("math", "numpy", "torch"))
_MADE_OF_SHAPES = frozenset(("defaultdict", "empty", "ones", "zeros"))
"""Functions whose results have nothing of what has been collected …"""
_MADE_OF_VALUES = frozenset(("Counter", "dict", "full", "list", "set", "tensor"))
"""… and those of which the same is true where they are given no variable."""
_LIKE_FIRST = frozenset(("clone", "float", "zeros_like"))
"""Those whose results may have something of the first item, or of a number."""


def single_pass(place: Place, name: str, programs: Sequence[Program]) -> Place | None:
    """The only loop that reads the items of a list that a statement fills, one after the other.

    ``for one in outputs: total += one.T @ one``; also where it goes through the list of targets
    beside it, and where its sum begins with the first item. None where anything else reads an item,
    and where the loop needs what is not known as an item comes: the mean of all, a model that has
    been trained meanwhile.
    """
    loops: list[Place] = []
    for read, around, program in reads_of_container(place, name, programs):
        if fills(read, around) or is_measured(read, around) or is_asked_for(read, around):
            continue
        items, outer = _but_the_first(read, around)
        if items is None:
            continue  # the first one
        loop = _iterating(items, outer, place)
        where = program.place(loop) if loop is not None else None
        if where is None or not _can_run_earlier(where, place):
            return None
        loops.append(where)
    return loops[0] if len(loops) == 1 else None


def _but_the_first(read: ast.expr, around: list[ast.AST]) -> tuple[ast.expr | None, list[ast.AST]]:
    """What goes through all items but the first, ``x[1:]``; None for the first one, ``x[0]``."""
    part = around[-1] if around else None
    if not isinstance(part, ast.Subscript) or part.value is not read:
        return read, around
    if isinstance(part.slice, ast.Constant) and part.slice.value == 0:
        return None, around
    is_rest = isinstance(part.slice, ast.Slice) and ast.unparse(part.slice) == "1:"
    return (part, around[:-1]) if is_rest else (read, around)


def _iterating(items: ast.expr, around: list[ast.AST], place: Place) -> ast.For | None:
    """The loop that goes through items, alone or beside what is filled where they are."""
    outer = [*around]
    iterated = items
    if outer and isinstance(outer[-1], ast.Call) and called_name(outer[-1]) in _BESIDE:
        call = outer.pop()
        assert isinstance(call, ast.Call)
        others = [one for one in call.args if one is not items]
        if not all(_is_filled_beside(one, place) for one in others):
            return None
        iterated = call
    loop = outer[-1] if outer else None
    return loop if isinstance(loop, ast.For) and loop.iter is iterated else None


def _is_filled_beside(other: ast.expr, place: Place) -> bool:
    """Whether the function that fills the list fills another one as well."""
    text = ast.unparse(other)
    return any(
        isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == text
        for call in calls_in(place.scope, *FILLING)
    )


def _can_run_earlier(loop: Place, filling: Place) -> bool:
    """Whether a loop runs once and needs nothing that is not known as the items come."""
    node = loop.statement
    if not isinstance(node, ast.For) or loop.loop is not None or node.orelse:
        return False
    inside = [one for statement in node.body for one in ast.walk(statement)]
    if any(isinstance(one, (*_LEAVING, *FUNCTIONS)) for one in inside):
        return False
    targets = {one.id for one in ast.walk(node.target) if isinstance(one, ast.Name)}
    bound = {one.id for one in inside if isinstance(one, ast.Name) and _is_bound(one)} - targets
    loaded = {one.id for one in inside if isinstance(one, ast.Name)} - targets
    if not all(_may_begin_anywhere(name, loop) for name in bound):
        return False
    if not all(_is_known_before(name, loop, filling) for name in loaded - bound):
        return False
    attributes = {ast.unparse(one) for one in inside if isinstance(one, ast.Attribute)}
    if attributes & set(_attributes_set(loop)):
        return False  # by what comes of all items, perhaps
    calls = [one for one in inside if isinstance(one, ast.Call)]
    return all(_is_of_values(call, loop, targets | bound) for call in calls)


def _attributes_set(loop: Place) -> Iterator[str]:
    """The attributes that the function of a loop sets, as written: ``self.limit``."""
    for node in ast.walk(loop.scope):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield ast.unparse(node)


def _is_bound(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)


def _may_begin_anywhere(name: str, loop: Place) -> bool:
    """Whether what a loop adds to begins with nothing that comes of all items."""
    return all(value is not None and _is_beginning(value) for value in _bound_outside(name, loop))


def _is_beginning(value: ast.expr) -> bool:
    """``0.0``, ``-float("inf")``, ``[]``, ``torch.zeros(512)``, or the first item."""
    if isinstance(value, ast.UnaryOp):
        return _is_beginning(value.operand)
    if isinstance(value, (ast.Dict, ast.List)):
        return not any(isinstance(one, ast.expr) for one in ast.iter_child_nodes(value))
    if isinstance(value, ast.Call):
        if called_name(value) in _MADE_OF_SHAPES:
            return True
        if called_name(value) in _MADE_OF_VALUES:
            names = (name for one in arguments(value) for name in loaded_names(one))
            return all(hasattr(builtins, name) or name == "torch" for name in names)
        of = value.func.value if isinstance(value.func, ast.Attribute) else None
        given = [*value.args, *([of] if of is not None else [])]
        return called_name(value) in _LIKE_FIRST and any(map(_is_beginning, given))
    if isinstance(value, ast.Subscript):
        return isinstance(value.slice, ast.Constant) and value.slice.value == 0
    return isinstance(value, ast.Constant)


def _bound_outside(name: str, loop: Place) -> Iterator[ast.expr | None]:
    """What statements outside a loop bind a variable of its function to; None: not known."""
    own = {id(one) for one in ast.walk(loop.statement)}
    for node in _bindings(name, loop):
        if id(node) not in own:
            place = loop.program.place(node)
            statement = place.statement if place is not None else None
            is_plain = isinstance(statement, ast.Assign) and node in statement.targets
            yield statement.value if is_plain and isinstance(statement, ast.Assign) else None


def _bindings(name: str, loop: Place) -> Iterator[ast.Name]:
    """Where the function of a loop, or the file, binds a variable."""
    for node in ast.walk(loop.scope):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            place = loop.program.place(node)
            if place is not None and place.scope is loop.scope:
                yield node


def _is_known_before(name: str, loop: Place, filling: Place) -> bool:
    """Whether a variable has the same value where items come: of the file, or bound once before."""
    lines = [node.lineno for node in _bindings(name, loop)]
    is_given = loop.function is not None and name in parameters(loop.function)
    if not lines and not is_given:
        return True  # a module, a function, or a variable of the file around
    if loop.function is not filling.function:
        return name == "self"
    first = filling.loop.lineno if filling.loop is not None else filling.line
    return all(line < first for line in lines) and len(lines) + is_given == 1


def _is_of_values(call: ast.Call, loop: Place, own: set[str]) -> bool:
    """Whether a call computes with an item, or shows it; stores none, and asks no model."""
    if isinstance(call.func, ast.Name):
        functions = loop.program.functions(call.func.id)
        return hasattr(builtins, call.func.id) or _compute_values(functions, loop.program)
    if not isinstance(call.func, ast.Attribute):
        return False
    root = qualified_name(loop, call.func).partition(".")[0]
    if root in _LIBRARIES:
        return True
    if call.func.attr in FILLING and not isinstance(call.func.value, ast.Constant):
        return False
    roots = {one.id for one in ast.walk(call.func.value) if isinstance(one, ast.Name)}
    return bool(roots & own) or not roots


def _compute_values(functions: Sequence[ast.AST], program: Program) -> bool:
    """Whether functions call nothing but functions of torch's, and methods of what they are given.

    One that calls another of the file, or a model, may do anything.
    """
    for function in functions:
        own = {one.id for one in ast.walk(function) if isinstance(one, ast.Name) and _is_bound(one)}
        own |= {*parameters(function)}
        for call in calls_in(function):
            place = program.place(call)
            is_named = isinstance(call.func, ast.Name)
            if is_named and not hasattr(builtins, call.func.id):  # type: ignore[attr-defined]
                return False
            if place is None or not (is_named or _is_of_values(call, place, own)):
                return False
    return bool(functions)
