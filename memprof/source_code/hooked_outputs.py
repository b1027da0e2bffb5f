"""Forward hooks of a program that put what modules return into a container, and what is read of it.

``self.features[name] = output`` in a function that is registered on modules, or
``self.outputs.append(output)`` in the ``__call__`` of an object that is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from memprof.source_code.program import (
    FUNCTIONS,
    Place,
    Program,
    arguments,
    assigned,
    called_name,
    calls_in,
    loaded_names,
)
from memprof.source_code.reduced_containers import reduction_of_all
from memprof.source_code.reductions import Reduction
from memprof.source_code.scopes import parameters
from memprof.source_code.values import values_of

__all__ = ["HookedOutputs", "hooked_outputs"]

_REGISTERING = "register_forward_hook"
_ALL_MODULES = frozenset(("children", "modules", "named_children", "named_modules"))
_APPENDING = "append"
_READS_NOTHING = frozenset(("clear", _APPENDING))
"""Methods of a dict or a list."""
_Hook: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True, slots=True, eq=False)
class HookedOutputs:
    """A hook, and how its container is read."""

    registration: Place
    """The statement that registers it."""
    filling: Place
    """The statement in the hook that puts something in."""
    container: str
    """As written there: ``self.features``."""
    is_on_every_module: bool
    """A loop goes through all modules, and no condition chooses some of them."""
    is_read_by_keys: bool
    """Entries are read by a key, and the container in no other way."""
    indices: frozenset[int] | None
    """Of a list the places in it that are read, where that is all that is read."""
    reduction: Reduction | None
    """How each entry is reduced, where that is all that is read of them."""


def hooked_outputs(programs: Sequence[Program]) -> Iterator[HookedOutputs]:
    """Those of a program, one for each statement that registers such a hook."""
    for program in programs:
        for call in calls_in(program.tree, _REGISTERING):
            registration = program.place(call)
            for where, function in _functions(programs, call):
                filling = _filling(where, function)
                if registration is None or filling is None:
                    continue
                place, container = filling
                keys = _keys_read(programs, container)
                is_list = not isinstance(place.statement, ast.Assign)
                yield HookedOutputs(
                    registration,
                    place,
                    container,
                    _is_on_every_module(registration, call),
                    bool(keys) and not is_list,
                    _indices(keys) if is_list else None,
                    reduction_of_all(place, container, programs),
                )


def _functions(programs: Sequence[Program], call: ast.Call) -> list[tuple[Program, _Hook]]:
    """The hook that a call registers: by its name, in a `partial`, or made by another function.

    Or written in its place, or the ``__call__`` of an object that was made under that name.
    """
    hook = next(arguments(call), None)
    if isinstance(hook, ast.Lambda):
        return [(program, hook) for program in programs if program.place(call) is not None]
    if isinstance(hook, ast.Call) and called_name(hook) == "partial" and hook.args:
        hook = hook.args[0]
    of_call = isinstance(hook, ast.Call)
    name = called_name(hook) if isinstance(hook, ast.Call) else _last_name(hook)
    own: list[tuple[Program, _Hook]] = [
        (program, one) for program in programs for one in program.functions(name)
    ]
    if not own:
        return _of_object(programs, name if of_call else _class_of(programs, name))
    if len(own) != 1 or not of_call:
        return own if len(own) == 1 else []
    ((program, making),) = own
    returned = [one.value for one in ast.walk(making) if isinstance(one, ast.Return)]
    names = {_last_name(one) for one in returned}
    return [
        (program, one)
        for one in ast.walk(making)
        if (isinstance(one, FUNCTIONS) and one is not making and one.name in names)
        or (isinstance(one, ast.Lambda) and one in returned)
    ]


def _class_of(programs: Sequence[Program], name: str) -> str:
    """The class of the object that a name is always bound to; empty where that is not sure."""
    classes = {
        called_name(value) if value is not None else ""
        for program in programs
        for node in program.nodes
        for target, value in assigned(node)
        if _last_name(target) == name
    }
    return classes.pop() if name and len(classes) == 1 else ""


def _of_object(programs: Sequence[Program], class_name: str) -> list[tuple[Program, _Hook]]:
    """What an object of a class runs when it is called."""
    return [
        (program, one)
        for program in programs
        for class_ in program.nodes
        if class_name and isinstance(class_, ast.ClassDef) and class_.name == class_name
        for one in class_.body
        if isinstance(one, FUNCTIONS) and one.name == "__call__"
    ]


def _last_name(node: ast.expr | None) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _filling(program: Program, function: _Hook) -> tuple[Place, str] | None:
    """The one statement that puts the hook's last argument under a key, or into a list.

    And into what.
    """
    with_defaults = {one.arg for one in _with_defaults(function)}
    names = [name for name in parameters(function) if name not in with_defaults]
    for node in ast.walk(function):
        container: ast.expr | None = None
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            container = target.value if isinstance(target, ast.Subscript) else None
        elif isinstance(node, ast.Call) and called_name(node) == _APPENDING:
            container = node.func.value if isinstance(node.func, ast.Attribute) else None
        value = node.value if isinstance(node, ast.Assign) else node
        if container is not None and names and names[-1] in loaded_names(value):
            place = program.place(node)
            return (place, ast.unparse(container)) if place is not None else None
    return None


def _with_defaults(function: _Hook) -> list[ast.arg]:
    """Parameters that a hook has besides what it is called with: ``name=name``."""
    spec = function.args
    positional = [*spec.posonlyargs, *spec.args]
    return [*positional[len(positional) - len(spec.defaults) :], *spec.kwonlyargs]


def _is_on_every_module(registration: Place, call: ast.Call) -> bool:
    """Whether the loop around a call goes through all modules, and no ``if`` chooses some.

    ``if name:`` leaves out the model itself alone.
    """
    for one in ast.walk(registration.statement):
        if isinstance(one, (ast.ListComp, ast.SetComp, ast.GeneratorExp)) and one.elt is call:
            (*_, last) = one.generators
            return not last.ifs and _goes_through_all(registration, last.iter)
    for node in reversed(registration.around):
        if isinstance(node, ast.If) and not isinstance(node.test, ast.Name):
            return False
        if isinstance(node, (ast.For, ast.AsyncFor)):
            return _goes_through_all(registration, node.iter)
    return False


def _goes_through_all(place: Place, iterated: ast.expr) -> bool:
    return any(
        isinstance(one, ast.Call) and called_name(one) in _ALL_MODULES
        for one in _iterated(place, iterated)
    )


def _iterated(place: Place, value: ast.expr) -> Iterator[ast.AST]:
    """What an expression goes through, with what its variable is bound to once."""
    yield from ast.walk(value)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        value = value.func.value
    if isinstance(value, ast.Name):
        bound = list(values_of(place, value.id))
        if len(bound) == 1 and bound[0] is not None:
            yield from ast.walk(bound[0])


def _keys_read(programs: Sequence[Program], container: str) -> list[ast.expr]:
    """The keys of the entries that the program reads of what has that name.

    None where it reads it in any other way.
    """
    last, keys = container.rpartition(".")[2], list[ast.expr]()
    for program in programs:
        above = {child: node for node in program.nodes for child in ast.iter_child_nodes(node)}
        for node in program.nodes:
            is_it = isinstance(node, (ast.Attribute, ast.Name)) and _last_name(node) == last
            if not is_it or not isinstance(node.ctx, ast.Load):  # type: ignore[attr-defined]
                continue
            parent = above.get(node)
            if isinstance(parent, ast.Subscript) and parent.value is node:
                keys += [parent.slice] if isinstance(parent.ctx, ast.Load) else []
            elif not (isinstance(parent, ast.Attribute) and parent.attr in _READS_NOTHING):
                return []
    return keys


def _indices(keys: Sequence[ast.expr]) -> frozenset[int] | None:
    """The places in a list that keys stand for; None where one is not written out."""
    values = [_number(key) for key in keys]
    known = frozenset(value for value in values if value is not None)
    return known if known and None not in values else None


def _number(key: ast.expr) -> int | None:
    is_negative = isinstance(key, ast.UnaryOp) and isinstance(key.op, ast.USub)
    value = key.operand if isinstance(key, ast.UnaryOp) and is_negative else key
    if not isinstance(value, ast.Constant) or type(value.value) is not int:
        return None
    return -value.value if is_negative else value.value
