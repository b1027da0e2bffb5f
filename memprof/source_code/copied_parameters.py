"""Statements that copy all parameters of a model: each of them, its state, or the whole module."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from memprof.source_code.program import (
    Place,
    Program,
    called_name,
    calls_in,
    own_calls,
    root_name,
)
from memprof.source_code.scopes import COMPREHENSIONS, parameters
from memprof.source_code.values import values_of
from memprof.source_code.verbs import OF_MODULES, SAVING

__all__ = ["Copied", "copied_parameters", "keeps_in_step"]


class Copied(Enum):
    """What a statement copies."""

    PARAMETERS = "parameters"
    STATE = "state"
    """A module's `state_dict`, whose tensors ask for no gradient."""
    AVERAGE = "average"
    """A whole module, as `torch.optim.swa_utils.AveragedModel` does."""
    MODULE = "module"
    """A whole module, by `copy.deepcopy`."""
    LIBRARY = "library"
    """All parameters that a library's average is given: ``EMAModel(unet.parameters())``."""


_AVERAGE = "AveragedModel"
"""It copies the module that it is given by `copy.deepcopy`, and averages all of its parameters."""
_AVERAGES = ("EMA", "EMAModel", "ExponentialMovingAverage", "ModelEMA", "ModelEma", "ModelEmaV2")
"""Classes of libraries that keep such an average: diffusers, ema-pytorch, timm, torch-ema."""
_DEEP_COPY = "deepcopy"
_COPYING = frozenset(("clone", _DEEP_COPY))
_STATE = "state_dict"
_FILTER = "requires_grad"
_SAME_ITEMS = frozenset(
    ("OrderedDict", "dict", "enumerate", "list", "reversed", "sorted", "tqdm", "tuple", "zip")
)
"""Functions whose result has all items that they are given."""
_OF_MAPPING = frozenset(("copy", "items", "values"))
_LOADING = "load_state_dict"
_DEEPEST = 6
"""Names that stand for one another, until what they go through is given up."""


@dataclass(frozen=True, slots=True, eq=False)
class _Way:
    """A statement, and those that called its function, innermost first."""

    place: Place
    callers: Sequence[Place]


def copied_parameters(place: Place, callers: Sequence[Place]) -> Copied | None:
    """What a statement copies of a model without a condition; None for other statements.

    ``{n: p.clone() for n, p in model.named_parameters()}``, the same in a loop that goes through
    them, or through what the function was given: ``EMA(model.parameters())``.

    Args:
        place: the statement.
        callers: the statements that called its function, innermost first.
    """
    if any(called_name(node) == _AVERAGE for node in ast.walk(place.statement)):
        return Copied.AVERAGE
    way = _Way(place, [one for one in callers if one.scope is not place.scope])
    for call in own_calls(place.statement, *_AVERAGES):
        own_class = any(called_name(call) == one.name for one in place.program.classes())
        if call.args and not own_class and _goes_through(way, call.args[0], _DEEPEST):
            return Copied.LIBRARY
    source = _copied_items(place)
    if source is not None:
        method = _goes_through(way, source, _DEEPEST)
        if not method:
            return None
        return Copied.STATE if method == _STATE else Copied.PARAMETERS
    for call in own_calls(place.statement, _DEEP_COPY):
        method = _goes_through(way, call.args[0], _DEEPEST) if call.args else ""
        if method:
            return Copied.STATE if method == _STATE else Copied.PARAMETERS
        if call.args and isinstance(call.args[0], (ast.Name, ast.Attribute)):
            return Copied.MODULE
    return None


def _copied_items(place: Place) -> ast.expr | None:
    """What a statement goes through that copies each item, and asks nothing of any of them."""
    for node in ast.walk(place.statement):
        generators = node.generators if isinstance(node, COMPREHENSIONS) else []
        if len(generators) == 1 and _copies_item(node, generators[0].target):
            return None if generators[0].ifs or _asks(node) else generators[0].iter
    loop = place.loop
    if not isinstance(loop, (ast.For, ast.AsyncFor)) or not _copies_item(
        place.statement, loop.target
    ):
        return None
    return None if _asks(loop) else loop.iter


def _copies_item(node: ast.AST, target: ast.expr) -> bool:
    """Whether something is copied that a loop's variable is, or has."""
    names = {one.id for one in ast.walk(target) if isinstance(one, ast.Name)}
    return any(
        root_name(one) in names
        for call in calls_in(node, *_COPYING)
        for one in (call.func, *call.args)
    )


def _asks(node: ast.AST) -> bool:
    return any(
        isinstance(one, (ast.If, ast.IfExp, ast.Match, ast.Try))
        or (isinstance(one, ast.Attribute) and one.attr == _FILTER)
        for one in ast.walk(node)
    )


def _goes_through(way: _Way, items: ast.expr, left: int) -> str:
    """The method of a module whose items these are, all of them; empty for others."""
    while isinstance(items, ast.Call):
        name = called_name(items)
        if name in OF_MODULES:
            return name if isinstance(items.func, ast.Attribute) else ""
        if isinstance(items.func, ast.Attribute) and name in _OF_MAPPING:
            items = items.func.value
        elif name in _SAME_ITEMS and items.args:
            items = items.args[0]
        else:
            return ""
    if isinstance(items, COMPREHENSIONS):
        is_whole = len(items.generators) == 1 and not items.generators[0].ifs
        return _goes_through(way, items.generators[0].iter, left) if is_whole else ""
    if not left or not isinstance(items, (ast.Name, ast.Attribute)):
        return ""
    methods = {
        _goes_through(where, one, left - 1) if where is not None else ""
        for where, one in _meanings(way, items)
    }
    return methods.pop() if len(methods) == 1 else ""


def _meanings(way: _Way, name: ast.Name | ast.Attribute) -> Iterator[tuple[_Way | None, ast.expr]]:
    """What a variable or an attribute stands for, and where; without a place where unknown."""
    text, place = ast.unparse(name), way.place
    for value in values_of(place, text):
        if value is None:
            yield _given(way, text) or (None, name)
            continue
        at = place.program.place(value)
        is_itself = isinstance(name, ast.Name) and any(
            isinstance(one, ast.Name) and one.id == name.id for one in ast.walk(value)
        )
        if not is_itself:  # else ``parameters = list(parameters)``, of what is a parameter
            own = at is not None and at.scope is place.scope
            yield (_Way(at, way.callers if own else ()) if at is not None else None), value


def _given(way: _Way, name: str) -> tuple[_Way, ast.expr] | None:
    """What the statement that called a function gives it as a parameter."""
    place, function = way.place, way.place.function
    names = [one for one in parameters(function) if one not in ("self", "cls")] if function else []
    if function is None or name not in names or not way.callers:
        return None
    own_class = place.class_.name if place.class_ is not None else ""
    called = (own_class, function.name) if function.name == "__init__" else (function.name,)
    caller = way.callers[0]
    calls = own_calls(caller.statement, *called)
    if len(calls) != 1:
        return None
    given = dict(zip(names, calls[0].args, strict=False))
    given |= {one.arg: one.value for one in calls[0].keywords if one.arg is not None}
    outer = [one for one in way.callers if one.scope is not caller.scope]
    return (_Way(caller, outer), given[name]) if name in given else None


def keeps_in_step(programs: Sequence[Program]) -> bool:
    """Whether a program sets or averages a module's parameters by those of another.

    ``zip(target.parameters(), online.parameters())``, a loop through the state of one in a function
    that asks for the state of another, and ``target.load_state_dict(online.state_dict())``.
    """
    return any(_pairs(node) for program in programs for node in program.nodes)


def _pairs(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        name = called_name(node)
        if name == _LOADING and isinstance(node.func, ast.Attribute) and node.args:
            of = _modules_read(node.args[0], _STATE)
            return bool(of) and of != {ast.unparse(node.func.value)}
        is_pair = name == "zip" or name.startswith("_foreach_")
        return is_pair and len(_modules_read(node, *OF_MODULES)) > 1
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    loops = [one for one in ast.walk(node) if isinstance(one, (ast.For, ast.AsyncFor))]
    through = {name for one in loops for name in _modules_read(one.iter, _STATE)}
    saved = {id(one) for call in calls_in(node, *(SAVING - {_STATE})) for one in calls_in(call)}
    read = {
        ast.unparse(call.func.value)
        for call in calls_in(node, _STATE)
        if isinstance(call.func, ast.Attribute) and id(call) not in saved
    }
    return bool(through) and len(read) > 1


def _modules_read(node: ast.AST, *methods: str) -> set[str]:
    """The modules that such methods are called of, as they are written."""
    return {
        ast.unparse(call.func.value)
        for call in calls_in(node, *methods)
        if isinstance(call.func, ast.Attribute)
    }
