"""Where the function that a statement calls binds what it returns, and the functions behind it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from memprof.source_code.call_sites import handed_over
from memprof.source_code.program import FUNCTIONS, Place, Program, bound_names, called_name
from memprof.source_code.values import values_of

__all__ = ["called_function", "returned_from"]

_DEEPEST = 3
"""Functions that return what another returns, and names that stand for one another."""
_CALLED_BY_OBJECT = ("__call__", "forward")
"""Methods that a call of an object runs, and one of a module."""

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Called = tuple[Program, _Function]


def returned_from(place: Place, programs: Sequence[Program]) -> Iterator[Place]:
    """Statements that bind what a function returns, where a statement binds that function's result.

    Of ``average = meter.update(loss)`` it is ``self.value = …`` in ``update``, which returns
    ``self.value``; also where it returns several, or a sum that it divides. None where several
    functions have the name, and the object does not tell which.

    Of functions that return what another returns, and of an object that is called, only statements
    that bind what outlives the call: an attribute, or a variable of a function around.
    """
    call = place.statement.value if isinstance(place.statement, ast.Assign) else None
    if not isinstance(call, ast.Call):
        return
    named = _functions_named(called_name(call), programs)
    bindings = list(_bindings(*named[0])) if len(named) == 1 else []
    bindings += [one for one in _behind(place, call, programs, _DEEPEST) if _outlives_call(one)]
    yield from {id(one.statement): one for one in bindings}.values()


def called_function(place: Place, call: ast.Call, programs: Sequence[Program]) -> _Called | None:
    """The function of the program that a call runs, with its file; None where that is not known.

    The only one of its name; else the method of the class whose object is called, or the function
    that another one makes and returns.
    """
    named = _functions_named(called_name(call), programs)
    if len(named) == 1:
        return named[0]
    if named and not isinstance(call.func, ast.Attribute):
        return None
    called = named and isinstance(call.func, ast.Attribute)
    of = call.func.value if called and isinstance(call.func, ast.Attribute) else call.func
    methods = (called_name(call),) if called else _CALLED_BY_OBJECT
    functions = {
        id(function): (program, function)
        for _, made_by in _makers(place, of, programs, _DEEPEST)
        for program, function in _made_function(made_by, methods, programs)
    }
    return next(iter(functions.values())) if len(functions) == 1 else None


def _functions_named(name: str, programs: Sequence[Program]) -> list[_Called]:
    return [(one, function) for one in programs for function in one.functions(name) if name]


def _bindings(program: Program, function: _Function) -> Iterator[Place]:
    """The statements of a function that bind what it returns."""
    returned = {
        name
        for node in ast.walk(function)
        if isinstance(node, ast.Return)
        for name in _names_returned(node.value)
    }
    for node in ast.walk(function):
        if isinstance(node, ast.stmt) and returned & set(map(ast.unparse, bound_names(node))):
            binding = program.place(node)
            if binding is not None:
                yield binding


def _behind(
    place: Place, call: ast.Call, programs: Sequence[Program], left: int
) -> Iterator[Place]:
    """Those of the function that a call runs, and of the functions whose results it returns."""
    called = called_function(place, call, programs) if left else None
    if called is None:
        return
    program, function = called
    bindings = list(_bindings(program, function))
    yield from bindings
    returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
    for value in (*returned, *(getattr(one.statement, "value", None) for one in bindings)):
        at = program.place(value) if isinstance(value, ast.Call) else None
        if isinstance(value, ast.Call) and at is not None and at.function is function:
            yield from _behind(at, value, programs, left - 1)


def _outlives_call(place: Place) -> bool:
    """Whether a statement binds an attribute, or a variable of a function or a file around."""
    names = {
        name
        for node in ast.walk(place.scope)
        if isinstance(node, (ast.Global, ast.Nonlocal))
        for name in node.names
    }
    return any(
        isinstance(one, ast.Attribute) or (isinstance(one, ast.Name) and one.id in names)
        for one in bound_names(place.statement)
    )


def _makers(
    place: Place, value: ast.expr, programs: Sequence[Program], left: int
) -> Iterator[tuple[Place, ast.Call]]:
    """The calls that made what a name or an attribute stands for, each with its statement."""
    if isinstance(value, ast.Call):
        yield place, value
    if not left or not isinstance(value, (ast.Name, ast.Attribute)):
        return
    handed = handed_over(place, value, programs)
    if handed is not None:
        yield from _makers(*handed, programs, left - 1)
        return
    for one in values_of(place, ast.unparse(value)):
        at = place.program.place(one) if one is not None else None
        if at is not None and one is not None:
            yield from _makers(at, one, programs, left - 1)


def _made_function(
    made_by: ast.Call, methods: Sequence[str], programs: Sequence[Program]
) -> Iterator[_Called]:
    """The method of an object that a call makes, or the function that it returns."""
    name = called_name(made_by)
    for program in programs:
        for class_ in program.classes():
            if class_.name == name:
                own = [node for node in class_.body if isinstance(node, FUNCTIONS)]
                yield from ((program, one) for one in own if one.name in methods)
        for function in program.functions(name):
            returned = {
                node.value.id
                for node in ast.walk(function)
                if isinstance(node, ast.Return) and isinstance(node.value, ast.Name)
            }
            inner = [node for node in ast.walk(function) if isinstance(node, FUNCTIONS)]
            yield from ((program, one) for one in inner if one.name in returned)


def _names_returned(value: ast.expr | None) -> Iterator[str]:
    """``total`` of ``total``, of ``total / len(loader)`` and of ``loss, total / n``."""
    if isinstance(value, (ast.Name, ast.Attribute)):
        yield ast.unparse(value)
    elif isinstance(value, ast.Tuple):
        for part in value.elts:
            yield from _names_returned(part)
    elif isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div):
        yield from _names_returned(value.left)
