"""Whether what a call was given may have a graph, by the stack of the calls that led to it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.program import Place, Program, calls_in, place_of
from memprof.source_code.scopes import parameters
from memprof.source_code.values import asks_for_gradients, has_no_graph, values_of
from memprof.trace import Frame

__all__ = ["is_given_data"]


def is_given_data(programs: Sequence[Program], stack: Sequence[Frame]) -> bool:
    """True if nothing that the innermost statement of a stack hands to its one call has a graph.

    ``stack`` is innermost first. A parameter is followed to the call around it: of a module's
    ``forward`` to the call of the module. False where that cannot be told from the source.
    """
    if not stack or asks_for_gradients(programs):
        return False
    place = _place(stack[0])
    call = _only_call(place)
    if place is None or call is None:
        return False
    arguments = [*call.args, *(one.value for one in call.keywords)]
    return all(_is_data(place, value, stack[1:]) for value in arguments)


def _is_data(place: Place, value: ast.expr, callers: Sequence[Frame]) -> bool:
    if has_no_graph(place, value):
        return True
    if not isinstance(value, ast.Name) or place.function is None:
        return False
    if value.id not in parameters(place.function) or list(values_of(place, value.id)) != [None]:
        return False  # a variable that is bound to something else as well
    for at, frame in enumerate(callers):
        if frame_kind(frame.filename) is FrameKind.TORCH:
            continue  # a module's call hands on what it is given
        caller = _place(frame)
        call = _only_call(caller)
        argument = _argument(call, place, value.id) if call is not None else None
        return (
            caller is not None
            and argument is not None
            and _is_data(caller, argument, callers[at + 1 :])
        )
    return False


def _place(frame: Frame) -> Place | None:
    return place_of(frame) if frame_kind(frame.filename) is FrameKind.USER else None


def _only_call(place: Place | None) -> ast.Call | None:
    """The call that a statement is, or whose value it binds or returns, if it makes no other."""
    if place is None or not isinstance(place.statement, (ast.Assign, ast.Expr, ast.Return)):
        return None
    value = place.statement.value
    calls = calls_in(place.statement)
    return value if isinstance(value, ast.Call) and calls == [value] else None


def _argument(call: ast.Call, place: Place, name: str) -> ast.expr | None:
    """What a call hands to the parameter ``name`` of the function around a statement."""
    value = next((one.value for one in call.keywords if one.arg == name), None)
    names = list(_by_position(place))
    if value is None and name in names and names.index(name) < len(call.args):
        value = call.args[names.index(name)]
    is_spread = any(isinstance(one, ast.Starred) for one in call.args)
    return None if is_spread else value


def _by_position(place: Place) -> Iterator[str]:
    """The names of the parameters that a call fills by their order."""
    function = place.function
    if function is None:
        return
    names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    yield from names[place.class_ is not None :]
