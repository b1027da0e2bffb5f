"""Attributes and entries in which the program stores what a statement makes."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence

from memprof.source_code.idioms import written_entries
from memprof.source_code.program import (
    Place,
    Program,
    arguments,
    assigned,
    bound_names,
    called_name,
    own_calls,
)

__all__ = ["stored_name", "stores"]

_SETTING = ("setattr", "object.__setattr__")
"""Functions that set an attribute of an object by its name."""


def stores(place: Place, programs: Sequence[Program]) -> Iterator[tuple[Place, ast.expr]]:
    """What a statement stores in, and then where its function stores the variables that it binds.

    Or where a function does that either is handed to: ``job.finish(out)``, ``self.output = out``.
    """
    targets = bound_names(place.statement)
    yield from ((place, target) for target in targets)
    for call in own_calls(place.statement):
        yield from ((place, target) for target, _ in _entries_set(call))
        yield from _stored_by_call(call, None, programs)
    names = {target.id for target in targets if isinstance(target, ast.Name)}
    for node in ast.walk(place.scope) if names else ():
        at = place.program.place(node) if isinstance(node, (ast.Assign, ast.Call)) else None
        if at is None or at.scope is not place.scope:
            continue
        stored = assigned(node) if isinstance(node, ast.Assign) else _entries_set(node)
        for target, value in stored:
            if value is not None and _is_one_of(value, names):
                yield at, target
        if isinstance(node, ast.Call):
            yield from _stored_by_call(node, names, programs)


def _entries_set(call: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What a call sets by names, as it would be written, each with its value.

    ``request["hidden"]`` of ``request.update(hidden=h)`` and of the same with a dict,
    ``node.table`` of ``setattr(node, "table", t)``; of a name that a variable has, without any.
    """
    if not isinstance(call, ast.Call):
        return
    if isinstance(call.func, ast.Attribute) and call.func.attr == "update":
        pairs: list[tuple[ast.expr, ast.expr]] = [
            (ast.Constant(one.arg), one.value) for one in call.keywords if one.arg
        ]
        pairs += [pair for one in call.args for pair in written_entries(one)]
        yield from ((ast.Subscript(call.func.value, key), value) for key, value in pairs)
    if ast.unparse(call.func) in _SETTING and len(call.args) == 3:
        owner, key, value = call.args
        name = key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else ""
        yield ast.Attribute(owner, name), value


def _stored_by_call(
    call: ast.Call, names: Collection[str] | None, programs: Sequence[Program]
) -> Iterator[tuple[Place, ast.expr]]:
    """Where functions that a call may be of store a parameter that one of some variables is.

    ``names`` is None where each argument counts.
    """
    if names is not None and not any(_is_one_of(one, names) for one in arguments(call)):
        return
    for program in programs:
        for function in program.functions(called_name(call)):
            given = {
                name
                for name, value in _given(call, function)
                if names is None or _is_one_of(value, names)
            }
            for node in ast.walk(function) if given else ():
                at = program.place(node) if isinstance(node, (ast.Assign, ast.Call)) else None
                if at is None or at.function is not function:
                    continue
                stored = assigned(node) if isinstance(node, ast.Assign) else _entries_set(node)
                for target, value in stored:
                    is_stored = not isinstance(target, ast.Name)
                    if is_stored and value is not None and _is_one_of(value, given):
                        yield at, target


def _is_one_of(value: ast.expr, names: Collection[str]) -> bool:
    return isinstance(value, ast.Name) and value.id in names


def _given(
    call: ast.Call, function: ast.FunctionDef | ast.AsyncFunctionDef
) -> Iterator[tuple[str, ast.expr]]:
    """The parameters that a call hands over, each with what it is."""
    names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    is_method = isinstance(call.func, ast.Attribute) and names[:1] in (["self"], ["cls"])
    if not any(isinstance(one, ast.Starred) for one in call.args):
        yield from zip(names[is_method:], call.args, strict=False)
    yield from ((one.arg, one.value) for one in call.keywords if one.arg)


def stored_name(target: ast.expr) -> str:
    """``hidden`` of ``sample.hidden`` and of ``sample.extra["hidden"]``; else empty."""
    if isinstance(target, ast.Attribute):
        return target.attr
    key = target.slice if isinstance(target, ast.Subscript) else None
    return key.value if isinstance(key, ast.Constant) and isinstance(key.value, str) else ""
