"""Attributes of objects that no function which may still run reads: by the program's stack now."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memprof.source_code.given_attributes import given_in_init
from memprof.source_code.idioms import optimizers_made
from memprof.source_code.program import (
    FUNCTIONS,
    LOOPS,
    Place,
    Program,
    called_name,
    place_of,
    root_name,
)
from memprof.source_code.values import values_of
from memprof.trace import Frame

__all__ = ["IdleAttribute", "idle_attribute", "read_no_more"]

_DEEPEST = 3
"""Calls between a function that runs and one that reads the attribute."""
_INIT = "__init__"


@dataclass(frozen=True, slots=True, eq=False)
class IdleAttribute:
    """An attribute that is read no more, and the statement by which it was read last."""

    name: str
    """As it is called there: ``trainer.text_encoder``."""
    place: Place
    line: int
    """On which that statement ends."""


def idle_attribute(
    made_by: Sequence[Frame], now: Sequence[Frame], programs: Sequence[Program]
) -> IdleAttribute | None:
    """What an object's ``__init__`` gave it, if nothing that may still run reads it.

    None where it is read in a function that runs now, or may be called again; where it is not known
    who calls that function; and where nobody has read it yet.

    Args:
        made_by: the frames that made the value, innermost first.
        now: those that run now.
        programs: the program's files.
    """
    # Of a model in an object: its own layers are its attributes as well.
    given = next((one for frame in reversed(made_by) if (one := given_in_init(frame))), None)
    return read_no_more(given.name, now, programs) if given is not None else None


def read_no_more(
    attribute: str, now: Sequence[Frame], programs: Sequence[Program]
) -> IdleAttribute | None:
    """The last call by which objects' attribute of a name was read, if nothing may read it again.

    Of ``now`` and ``programs`` and of where it is None the same holds as for `idle_attribute`.
    """
    readers = list(_readers(programs, attribute))
    if not readers or any(reader is None for reader in readers):
        return None
    calls: list[tuple[Place, ast.Call]] = []
    for reader in readers:
        before = _calls_before(reader, now, programs, _DEEPEST) if reader is not None else None
        if before is None:
            return None
        calls += before
    running = [pair for pair in calls if isinstance(pair[1].func, ast.Attribute)]
    if not running:
        return None
    place, call = max(running, key=lambda pair: pair[0].line)
    assert isinstance(call.func, ast.Attribute)
    name = f"{ast.unparse(call.func.value)}.{attribute}"
    return IdleAttribute(name, place, place.statement.end_lineno or place.line)


def _readers(
    programs: Sequence[Program], attribute: str
) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | None]:
    """The functions but ``__init__`` that read an attribute of that name; None for a file."""
    functions: dict[int, ast.FunctionDef | ast.AsyncFunctionDef | None] = {}
    for program in programs:
        for node in program.nodes:
            if not isinstance(node, ast.Attribute) or node.attr != attribute:
                continue
            place = program.place(node)
            function = place.function if place is not None else None
            if isinstance(node.ctx, ast.Load) and (function is None or function.name != _INIT):
                functions[id(function)] = function
    yield from functions.values()


def _calls_before(
    function: ast.FunctionDef | ast.AsyncFunctionDef,
    now: Sequence[Frame],
    programs: Sequence[Program],
    depth: int,
) -> list[tuple[Place, ast.Call]] | None:
    """The calls in functions that run by which a function ran; None where it may run again."""
    if depth == 0 or any(_is_in(frame, function) for frame in now):
        return None
    sites = [
        (place, node)
        for program in programs
        for node in program.nodes
        if isinstance(node, ast.Call) and called_name(node) == function.name
        if (place := program.place(node)) is not None
        if not _is_of_optimizer(programs, place, node)
    ]
    before: list[tuple[Place, ast.Call]] = []
    for place, call in sites:
        running = [at for at, frame in enumerate(now) if _runs(frame, place)]
        if running:
            if any(_comes_again(place, now[at].line) for at in running):
                return None
            if not _is_made_here(place, call) and _is_in_loop(now[running[-1] + 1 :]):
                return None
            before.append((place, call))
        elif place.function is None:
            return None  # of a file that is not being run
        else:
            further = _calls_before(place.function, now, programs, depth - 1)
            if further is None:
                return None
            before += further
    return before or None


def _is_of_optimizer(programs: Sequence[Program], place: Place, call: ast.Call) -> bool:
    """Whether a method is called of one of torch's optimizers: none of the program's own then.

    ``optimizer.step()`` calls no `step` of a trainer, where ``optimizer = Adam(…)``.
    """
    if not isinstance(call.func, ast.Attribute):
        return False
    values = list(values_of(place, ast.unparse(call.func.value)))
    made = {id(one) for one, _ in optimizers_made(programs)} if values else set()
    return bool(values) and all(id(one) in made for one in values)


def _is_in(frame: Frame, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    place = place_of(frame)
    around = (*place.around, place.statement) if place is not None else ()
    return any(one is function for one in around)


def _is_made_here(place: Place, call: ast.Call) -> bool:
    """Whether the function that calls a method has made the object itself: each run its own."""
    name = root_name(call.func)
    return any(isinstance(value, ast.Call) for value in values_of(place, name)) if name else False


def _is_in_loop(callers: Sequence[Frame]) -> bool:
    """Whether a loop goes around the line of a function that called one, and so calls it again."""
    return any(
        place.loop is not None or isinstance(place.statement, LOOPS)
        for place in map(place_of, callers)
        if place is not None
    )


def _runs(frame: Frame, place: Place) -> bool:
    """Whether a frame is of the function, or the file, that a statement stands in."""
    at = place_of(frame)
    return at is not None and at.program is place.program and at.function is place.function


def _comes_again(place: Place, line: int) -> bool:
    """Whether a statement comes after a line of its function, or is in a loop around it."""
    if place.line >= line:
        return True
    loops = [node for node in place.around if isinstance(node, LOOPS)]
    inner = max(
        (at for at, node in enumerate(place.around) if isinstance(node, FUNCTIONS)), default=-1
    )
    own = [node for node in loops if place.around.index(node) > inner]
    return any(node.lineno <= line <= (node.end_lineno or node.lineno) for node in own)
