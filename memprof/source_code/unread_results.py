"""What a function collects and returns beside its result, and a call of it does not read."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from memprof.source_code.branches import left_out
from memprof.source_code.idioms import growing
from memprof.source_code.program import (
    FUNCTIONS,
    Place,
    called_name,
    calls_in,
    root_name,
)
from memprof.source_code.scopes import reads_of

__all__ = ["UnreadResult", "unread_result"]

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_CALLED_BY_OBJECT = ("__call__", "forward")
"""Methods that a call of an object runs, and one of a module."""


@dataclass(frozen=True, slots=True)
class UnreadResult:
    """A list or a dict that a loop fills, and that is one of several results."""

    name: str
    """The variable of the function that returns it."""
    parameter: str = ""
    """The parameter that is on by default, without which it would not be filled; empty for none."""


def unread_result(place: Place, caller: Place) -> UnreadResult | None:
    """What a loop of a function collects for who calls it, where a call reads only other results.

    ``hidden, _ = model(tokens)``, ``model(tokens)[0]``, or ``output[0]`` of a variable that is read
    in no other way; of ``return x, present``.

    Args:
        place: a statement of the function; the loop around it fills what is meant.
        caller: the statement that calls the function.
    """
    function, loop = place.function, place.loop
    if function is None or loop is None:
        return None
    returns = [one for one in ast.walk(function) if isinstance(one, ast.Return)]
    results = returns[0].value if len(returns) == 1 else None
    if not isinstance(results, ast.Tuple):
        return None
    call, unread = _unread(caller, len(results.elts))
    if call is None or not _is_only_call(call, caller, function.name):
        return None
    for at in unread:
        result = results.elts[at]
        if not isinstance(result, ast.Name):
            continue
        for filling in _fillings(place, loop, result.id):
            return UnreadResult(result.id, _parameter(filling, function, call))
    return None


def _is_only_call(call: ast.Call, caller: Place, name: str) -> bool:
    """Whether of a statement's calls none but one may run a function.

    One of its name; of what objects run when they are called, also one of whatever is neither
    another function of the file nor of what it imports.
    """
    program = caller.program
    imports = (one for one in program.nodes if isinstance(one, (ast.Import, ast.ImportFrom)))
    known = {(one.asname or one.name).partition(".")[0] for at in imports for one in at.names}
    known |= {one.name for one in program.nodes if isinstance(one, FUNCTIONS)}
    known |= set(dir(builtins))
    is_run = name in _CALLED_BY_OBJECT
    meant = [
        one
        for one in calls_in(caller.statement)
        if called_name(one) == name or (is_run and root_name(one.func) not in known)
    ]
    return len(meant) == 1 and meant[0] is call


def _unread(caller: Place, number: int) -> tuple[ast.Call | None, list[int]]:
    """The call, and which of its results nothing reads; none where that is all of them."""
    statement = caller.statement
    taken = [
        node
        for node in ast.walk(statement)
        if isinstance(node, ast.Subscript)
        and isinstance(node.value, ast.Call)
        and isinstance(node.slice, ast.Constant)
        and type(node.slice.value) is int
    ]
    if len(taken) == 1 and isinstance(taken[0].slice, ast.Constant):
        read = int(taken[0].slice.value) % number  # type: ignore[arg-type]
        call = taken[0].value
        return call if isinstance(call, ast.Call) else None, [n for n in range(number) if n != read]
    if not (isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call)):
        return None, []
    (target, *others) = statement.targets
    if others:
        return None, []
    if isinstance(target, ast.Name):
        read_at = _places_read(target.id, caller, number)
        return statement.value, [at for at in range(number) if at not in read_at] if read_at else []
    if not isinstance(target, ast.Tuple) or len(target.elts) != number:
        return None, []
    names = [one.id if isinstance(one, ast.Name) else "" for one in target.elts]
    unread = [at for at, name in enumerate(names) if name and not _is_read(name, caller)]
    return statement.value, unread if len(unread) < number else []


def _places_read(name: str, caller: Place, number: int) -> set[int]:
    """The places at which a variable's tuple is read; none where it is read in other ways too."""
    reads = list(reads_of(caller.scope, name))
    places: set[int] = set()
    for _, around in reads:
        parent = around[-1] if around else None
        index = parent.slice if isinstance(parent, ast.Subscript) else None
        if not isinstance(index, ast.Constant) or type(index.value) is not int:
            return set()
        places.add(index.value % number)
    return places


def _is_read(name: str, caller: Place) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        for node in ast.walk(caller.scope)
    )


def _fillings(place: Place, loop: ast.AST, name: str) -> Iterator[Place]:
    """The statements of a loop that put something into a variable of its function."""
    for node in ast.walk(loop):
        at = place.program.place(node) if isinstance(node, ast.stmt) else None
        filling = growing(at) if at is not None and at.statement is node else None
        if at is not None and filling is not None and filling.container == name:
            yield at


def _parameter(filling: Place, function: Function, call: ast.Call | None) -> str:
    """The parameter that a statement hangs on, where it is True by default and not handed over."""
    if call is None:
        return ""
    is_method = [one.arg for one in function.args.args][:1] == ["self"]
    defaults = left_out(function, call, is_method=is_method)
    tests = [one.test for one in filling.around if isinstance(one, ast.If)]
    names = (one.id for one in tests if isinstance(one, ast.Name))
    return next((name for name in names if defaults.get(name) is True), "")
