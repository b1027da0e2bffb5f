"""Forward hooks of a program that put what modules return into a container, and what is read of it.

``self.features[name] = output`` in a function that is registered on modules.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memprof.source_code.program import (
    FUNCTIONS,
    Place,
    Program,
    arguments,
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
_EMPTYING = frozenset(("clear",))
"""Methods of a dict that read nothing."""


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
                yield HookedOutputs(
                    registration,
                    place,
                    container,
                    _is_on_every_module(registration),
                    _is_read_by_keys(programs, container),
                    reduction_of_all(place, container, programs),
                )


def _functions(
    programs: Sequence[Program], call: ast.Call
) -> list[tuple[Program, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """The hook that a call registers: by its name, in a `partial`, or made by another function."""
    hook = next(arguments(call), None)
    if isinstance(hook, ast.Call) and called_name(hook) == "partial" and hook.args:
        hook = hook.args[0]
    of_call = isinstance(hook, ast.Call)
    name = called_name(hook) if isinstance(hook, ast.Call) else _last_name(hook)
    own = [(program, one) for program in programs for one in program.functions(name)]
    if len(own) != 1 or not of_call:
        return own if len(own) == 1 else []
    ((program, making),) = own
    returned = {_last_name(one.value) for one in ast.walk(making) if isinstance(one, ast.Return)}
    return [
        (program, one)
        for one in ast.walk(making)
        if isinstance(one, FUNCTIONS) and one is not making and one.name in returned
    ]


def _last_name(node: ast.expr | None) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _filling(
    program: Program, function: ast.FunctionDef | ast.AsyncFunctionDef
) -> tuple[Place, str] | None:
    """The one statement that puts the hook's last argument under a key, and into what."""
    names = list(parameters(function))
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not names:
            continue
        target = node.targets[0]
        if isinstance(target, ast.Subscript) and names[-1] in loaded_names(node.value):
            place = program.place(node)
            return (place, ast.unparse(target.value)) if place is not None else None
    return None


def _is_on_every_module(registration: Place) -> bool:
    """Whether the loop around a statement goes through all modules, and no ``if`` chooses some.

    ``if name:`` leaves out the model itself alone.
    """
    for node in reversed(registration.around):
        if isinstance(node, ast.If) and not isinstance(node.test, ast.Name):
            return False
        if isinstance(node, (ast.For, ast.AsyncFor)):
            return any(
                isinstance(one, ast.Call) and called_name(one) in _ALL_MODULES
                for one in _iterated(registration, node.iter)
            )
    return False


def _iterated(place: Place, value: ast.expr) -> Iterator[ast.AST]:
    """What an expression goes through, with what its variable is bound to once."""
    yield from ast.walk(value)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        value = value.func.value
    if isinstance(value, ast.Name):
        bound = list(values_of(place, value.id))
        if len(bound) == 1 and bound[0] is not None:
            yield from ast.walk(bound[0])


def _is_read_by_keys(programs: Sequence[Program], container: str) -> bool:
    """Whether all that the program reads of what has that name is an entry, by a key."""
    last, is_read = container.rpartition(".")[2], False
    for program in programs:
        above = {child: node for node in program.nodes for child in ast.iter_child_nodes(node)}
        for node in program.nodes:
            is_it = isinstance(node, (ast.Attribute, ast.Name)) and _last_name(node) == last
            if not is_it or not isinstance(node.ctx, ast.Load):  # type: ignore[attr-defined]
                continue
            parent = above.get(node)
            if isinstance(parent, ast.Subscript) and parent.value is node:
                is_read |= isinstance(parent.ctx, ast.Load)
            elif not (isinstance(parent, ast.Attribute) and parent.attr in _EMPTYING):
                return False
    return is_read
