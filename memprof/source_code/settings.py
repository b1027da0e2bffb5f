"""What a setting may be that the user's source hands to a call.

By a variable, an attribute, a field of a class, or a parameter, as well as written out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from memprof.source_code.idioms import keyword
from memprof.source_code.program import Place, Program, assigned, called_name, calls_in
from memprof.source_code.values import values_of

__all__ = ["may_be_true", "meanings"]

_DEEPEST = 4
"""Names that stand for one another, until a setting is given up."""
_BOUND = ("self", "cls")


def meanings(
    place: Place, value: ast.expr, programs: Sequence[Program], depth: int = _DEEPEST
) -> Iterator[tuple[Place, ast.expr]]:
    """The expressions that a value may stand for, each with its statement.

    Those are what a name or an attribute is bound to. Of all else it is the value itself, and so it
    is of a name that nothing binds, as those of an import.
    """
    bound = list(_bindings(place, value, programs)) if depth else []
    if not bound:
        yield place, value
    for program, one in bound:
        at = program.place(one)
        if at is not None:
            yield from meanings(at, one, programs, depth - 1)


def may_be_true(place: Place, value: ast.expr, programs: Sequence[Program]) -> bool:
    """Whether a setting is written as true somewhere: ``True``, ``1``, ``bool(1)``, ``not off``."""
    return any(
        _is_written_as(at, one, programs, True) for at, one in meanings(place, value, programs)
    )


def _is_written_as(place: Place, value: ast.expr, programs: Sequence[Program], truth: bool) -> bool:
    if isinstance(value, ast.Constant):
        return bool(value.value) is truth
    inner = value
    if isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not):
        inner, truth = value.operand, not truth
    elif isinstance(value, ast.Call) and called_name(value) == "bool" and value.args:
        inner = value.args[0]
    return inner is not value and any(
        _is_written_as(at, one, programs, truth) for at, one in meanings(place, inner, programs)
    )


def _bindings(
    place: Place, value: ast.expr, programs: Sequence[Program]
) -> Iterator[tuple[Program, ast.expr]]:
    """What a name or an attribute is bound to, each with its file; nothing for all else."""
    if not isinstance(value, (ast.Name, ast.Attribute)):
        return
    for one in values_of(place, ast.unparse(value)):
        if one is not None:
            yield place.program, one
    if isinstance(value, ast.Name):
        yield from _given(place, value.id, programs)
    else:
        yield from _of_fields(value.attr, programs)


def _given(
    place: Place, name: str, programs: Sequence[Program]
) -> Iterator[tuple[Program, ast.expr]]:
    """What the parameter of the function around a statement is by default, and in its calls."""
    function = place.function
    if function is None:
        return
    spec = function.args
    by_place = [*spec.posonlyargs, *spec.args]
    defaults: dict[str, ast.expr | None] = {}
    first = len(by_place) - len(spec.defaults)
    defaults |= zip((one.arg for one in by_place[first:]), spec.defaults, strict=True)
    defaults |= zip((one.arg for one in spec.kwonlyargs), spec.kw_defaults, strict=True)
    names = [one.arg for one in by_place if one.arg not in _BOUND]
    if name not in names and name not in defaults:
        return
    default = defaults.get(name)
    if default is not None:
        yield place.program, default
    is_class = function.name == "__init__" and place.class_ is not None
    called = place.class_.name if is_class and place.class_ is not None else function.name
    for program in programs:
        for call in calls_in(program.tree, called):
            by_order = dict(zip(names, call.args, strict=False))
            given = keyword(call, name) or by_order.get(name)
            if given is not None and not isinstance(given, ast.Starred):
                yield program, given


def _of_fields(name: str, programs: Sequence[Program]) -> Iterator[tuple[Program, ast.expr]]:
    """What classes bind a name to in their bodies, and their objects when they are made."""
    for program in programs:
        for class_ in program.classes():
            bound = [
                value
                for statement in class_.body
                for target, value in assigned(statement)
                if isinstance(target, ast.Name) and target.id == name
            ]
            for value in bound:
                is_field = isinstance(value, ast.Call) and called_name(value) == "field"
                default = keyword(value, "default") if isinstance(value, ast.Call) else None
                default = default if is_field else value
                if default is not None:
                    yield program, default
            made = [
                (one, call)
                for one in programs
                for call in (calls_in(one.tree, class_.name) if bound else ())
            ]
            for where, call in made:
                given = keyword(call, name)
                if given is not None:
                    yield where, given
