"""Loops of a program that empty such containers as grow, and miss those that do."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from memprof.reference_chain import largest_container
from memprof.rules.case import Case
from memprof.rules.containers import FilledContainer, filled_container
from memprof.rules.rule import Advice
from memprof.source_code.idioms import last_name
from memprof.source_code.program import Place, root_name
from memprof.source_code.verbs import EMPTYING

__all__ = ["advice_on_missed"]


@dataclass(frozen=True, slots=True, eq=False)
class _Loop:
    place: Place
    """The loop's own statement."""
    line: int
    """Where it empties what it goes over."""


def advice_on_missed(case: Case) -> Iterator[Advice]:
    """Have the loop that empties the containers of other objects reach this one.

    The loop has run in the recording, and nothing that came into this one has gone.
    """
    container = filled_container(case)
    if container is None or not _was_never_emptied(container, case):
        return
    name = last_name(container.filling.container)
    for loop in _loops(container, case):
        if _has_run(loop, case):
            yield Advice(
                "clear_container",
                f"Line {loop.line} empties `{name}` of each object that this loop goes over, and "
                f"{container}: it is not among them. Have the loop reach it as well (parts of "
                "parts, as `modules()` does and `children()` does not).",
                loop.place,
            )
            return


def _was_never_emptied(container: FilledContainer, case: Case) -> bool:
    at = largest_container(container.holder.links)
    length = container.holder.links[at].length if at is not None else 0
    return length > 0 and length >= case.finding.growth.times


def _loops(container: FilledContainer, case: Case) -> Iterator[_Loop]:
    """Loops over objects of which each has the attribute that is filled emptied."""
    filled = container.filling.container
    if "." not in filled:
        return
    for program in case.programs:
        for node in program.nodes:
            owner = _emptied(node, last_name(filled))
            place = program.place(node) if owner else None
            loop = place.loop if place is not None else None
            if place is None or not isinstance(loop, (ast.For, ast.AsyncFor)):
                continue
            if owner in {one.id for one in ast.walk(loop.target) if isinstance(one, ast.Name)}:
                at = program.place(loop)
                if at is not None:
                    yield _Loop(at, place.line)


def _emptied(node: ast.AST, attribute: str) -> str:
    """``layer`` of ``layer.terms.clear()`` and of ``layer.terms = []``; else empty."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        emptied = node.func.value if node.func.attr in EMPTYING else None
    elif isinstance(node, ast.Assign) and isinstance(node.value, (ast.List, ast.Dict)):
        emptied = node.targets[0]
    else:
        return ""
    if not isinstance(emptied, ast.Attribute) or emptied.attr != attribute:
        return ""
    return root_name(emptied) if isinstance(emptied.value, ast.Name) else ""


def _has_run(loop: _Loop, case: Case) -> bool:
    """Whether the loop is in a stack of what was made in the recording."""
    statement, filename = loop.place.statement, loop.place.program.filename
    lines = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
    return case.window is not None and any(
        frame.filename == filename and frame.line in lines
        for frame in case.window.trace.tables.frames
    )
