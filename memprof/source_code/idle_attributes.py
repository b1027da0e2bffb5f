"""Attributes of objects that no function which may still run reads: by the program's stack now."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memprof.source_code.program import (
    FUNCTIONS,
    LOOPS,
    Place,
    Program,
    bound_names,
    called_name,
    place_of,
)
from memprof.trace import Frame

__all__ = ["IdleAttribute", "idle_attribute"]

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
    attribute = next((name for frame in reversed(made_by) if (name := _given(frame))), "")
    if not attribute:
        return None
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


def _given(frame: Frame) -> str:
    """``text_encoder`` of ``self.text_encoder = load()`` in an ``__init__``; empty for others."""
    place = place_of(frame)
    if place is None or place.function is None or place.function.name != _INIT:
        return ""
    targets = bound_names(place.statement) if isinstance(place.statement, ast.Assign) else []
    if len(targets) != 1 or not isinstance(targets[0], ast.Attribute):
        return ""
    is_own = isinstance(targets[0].value, ast.Name) and targets[0].value.id == "self"
    return targets[0].attr if is_own else ""


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
    ]
    before: list[tuple[Place, ast.Call]] = []
    for place, call in sites:
        lines = [frame.line for frame in now if _runs(frame, place)]
        if lines:
            if any(_comes_again(place, line) for line in lines):
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


def _is_in(frame: Frame, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    place = place_of(frame)
    around = (*place.around, place.statement) if place is not None else ()
    return any(one is function for one in around)


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
