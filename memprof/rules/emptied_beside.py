"""What empties such containers as grow, and misses the one that does: a loop, or a method."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from memprof.reference_chain import largest_container
from memprof.rules.case import Case
from memprof.rules.containers import FilledContainer, filled_container
from memprof.rules.rule import Advice
from memprof.source_code.idioms import last_name
from memprof.source_code.program import FUNCTIONS, Place, assigned, calls_in, root_name
from memprof.source_code.verbs import EMPTYING, FILLING

__all__ = ["advice_on_left", "advice_on_missed"]


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


def advice_on_left(case: Case, attribute: str, length: int) -> Iterator[Advice]:
    """Have the method that empties a list beside this attribute empty this one as well.

    ``reset()`` has ``self.fake = []``, and ``update()`` fills ``self.real`` too.
    """
    links = [link for holder in case.finding.holders[:1] for link in holder.links]
    kinds = {link.type_name for link in links}
    for program in case.programs:
        for one in program.classes() if attribute else ():
            if one.name not in kinds:
                continue
            methods = [node for node in one.body if isinstance(node, FUNCTIONS)]
            filling = [m for m in methods if m.name != "__init__" and calls_in(m, *FILLING)]
            together = [names for names in map(_own_names, filling) if attribute in names]
            for method in methods:
                emptied = _emptied_by(method)
                beside = sorted(emptied.keys() & {name for names in together for name in names})
                if not beside or attribute in _own_names(method) or method.name == "__init__":
                    continue
                place = program.place(emptied[beside[0]])
                if place is None or not any(case.calls(method.name)):
                    continue
                yield Advice(
                    "clear_container",
                    f"`{method.name}()` empties `self.{beside[0]}` and leaves `self.{attribute}` "
                    f"({length} items) as it is: empty it there as well, or fill it only once.",
                    place,
                )
                return


def _own_names(method: ast.AST) -> set[str]:
    """The attributes of ``self`` that a method has to do with."""
    return {
        node.attr
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"
    }


def _emptied_by(method: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, ast.AST]:
    """The attributes of ``self`` that a method empties, with the nodes that do."""
    emptied: dict[str, ast.AST] = {}
    for node in ast.walk(method):
        for target, value in assigned(node):
            is_empty = isinstance(value, (ast.List, ast.Tuple)) and not value.elts
            is_empty |= isinstance(value, ast.Dict) and not value.keys
            if is_empty and isinstance(target, ast.Attribute) and root_name(target) == "self":
                emptied.setdefault(target.attr, node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of = node.func.value
            is_own = isinstance(of, ast.Attribute) and ast.unparse(of.value) == "self"
            if node.func.attr == "clear" and isinstance(of, ast.Attribute) and is_own:
                emptied.setdefault(of.attr, node)
    return emptied


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
