"""grown-by-concatenation: a tensor is replaced in every step by one that has more appended."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.carried_caches import carried_by_loop
from memprof.rules.case import NO_FIGURE, Case
from memprof.rules.containers import filled_container
from memprof.rules.graph_lines import on_the_way
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.idioms import grown_by_concatenation, grown_into_new
from memprof.source_code.parts_read import newest_read, newest_read_by_name
from memprof.source_code.program import (
    Place,
    bound_names,
    called_name,
    calls_in,
    loaded_names,
    root_name,
)
from memprof.source_code.scopes import reads_of
from memprof.source_code.sliding_stacks import sliding_stack
from memprof.views.peak_without import Saving
from memprof.views.stacks import made_likewise

__all__ = ["RULE"]

_OF_SHAPE = frozenset(
    (
        *("device", "dtype", "ndim", "new_empty", "new_full", "new_ones", "new_zeros", "shape"),
        "size",
    )
)
"""Attributes and methods of a tensor that tell nothing of its values."""


@dataclass(frozen=True, slots=True, eq=False)
class Concatenation(Cause):
    """The statement that joins, and the name that it binds again."""

    place: Place
    name: str
    newest: ast.Subscript | None = None
    """The one part of it that is read, where that is what was appended last: ``bank[-1024:]``."""
    is_carried: bool = False
    """A loop of the caller carries it along, and begins with none."""


class GrownByConcatenation(GrowthRule[Concatenation]):
    """`preds = torch.cat([preds, new])` in every step."""

    name = "grown-by-concatenation"
    summary = "a tensor is joined with more in every step"
    fixes = (
        *("right_size", "reduce_predictions", "clear_container", "cpu_offload"),
        "preallocate",
    )
    yields_to = ("kept-graph", "running-sum", "carried-state")

    def match(self, case: Case) -> Concatenation | None:
        """A statement that joins what it binds with something else, and no table of such."""
        table = None if case.finding.growth.is_replaced else filled_container(case)
        if table is not None and table.filling.keyed:
            return None
        for place in on_the_way(case):
            if table is not None and sliding_stack(place):
                continue  # as long as the one before, and kept with it
            carried = carried_by_loop(case, place)
            if carried:
                return Concatenation(place, carried, is_carried=True)
            name = grown_by_concatenation(place)
            if not name and case.finding.growth.is_replaced:
                name = grown_into_new(place)
            if name:
                newest = newest_read(case.everywhere, place, name)
                newest = newest or newest_read_by_name(case.everywhere, place, name)
                return Concatenation(place, name, newest)
        return None

    def advice(self, cause: Concatenation, case: Case) -> Iterator[Advice]:
        """Keep what is read; begin it anew; collect on the host, or fill one of the final size."""
        if cause.newest is not None:
            part = ast.unparse(cause.newest)
            places = part.removeprefix(ast.unparse(cause.newest.value))
            yield Advice(
                "right_size",
                f"Of `{cause.name}` nothing but `{part}` is read (line {cause.newest.lineno}): "
                f"keep no more of what is joined (`{places}`).",
                cause.place,
                typed=_cut(cause.place, cause.newest),
            )
        call = _handed_to_after(cause.place, cause.name) if cause.newest is None else None
        if call is not None:
            yield Advice(
                "reduce_predictions",
                f"`{cause.name}` is made longer again and again, and only handed to "
                f"`{ast.unparse(call.func)}` when the loop is over (line {call.lineno}): compute "
                "what that needs of each part as it comes, and keep the sums.",
                cause.place,
            )
        why = f"`{cause.name}` is replaced by a larger copy of itself, and both are there meanwhile"
        if cause.newest is None and call is None and _is_result(cause.place, cause.name):
            yield Advice(
                "preallocate",
                f"`{cause.name}` is complete when the loop is over, and copied whole in each of "
                "its turns: allocate it once and fill it, or join its parts once behind the loop.",
                cause.place,
                saving=_with_the_last_alone(case) or NO_FIGURE,
            )
        once = f"{why}: allocate the final size once."
        if cause.is_carried:
            filled = f"{once[:-1]}, and fill it."
            yield Advice("preallocate", filled, cause.place, saving=NO_FIGURE)
            return
        yield Advice(
            "clear_container",
            f"`{cause.name}` is made longer again and again: begin it anew when it has been used, "
            "and keep of each part no more than is needed.",
            cause.place,
        )
        yield Advice("cpu_offload", f"{why}: collect the parts in host memory.", cause.place)
        yield Advice("preallocate", once, cause.place, otherwise=True)


def _with_the_last_alone(case: Case) -> Saving | None:
    """The peak without all the copies but the last one; None where they were not recorded."""
    window, allocs = case.window, case.finding.evidence.allocs
    if window is None or not len(allocs):
        return None
    grown = np.flatnonzero(np.isin(window.lives.alloc, allocs))
    copies = np.flatnonzero(made_likewise(window, grown) & (window.lives.alloc >= 0))
    last = copies[np.argmax(window.lives.alloc[copies])]
    return window.replayed(window.whole(copies[copies != last]))


def _is_result(place: Place, name: str) -> bool:
    """Whether a variable is read only behind the loop that joins it, but to be joined."""
    loop = place.loop
    if loop is None or not name.isidentifier():
        return False
    end = loop.end_lineno or loop.lineno
    reads = [load for load, _ in reads_of(place.scope, name) if load.lineno >= loop.lineno]
    within = [one for one in reads if one.lineno <= end]
    return len(reads) > len(within) and all(_is_of_growth(place, one) for one in within)


def _handed_to_after(place: Place, name: str) -> ast.Call | None:
    """The one call that a variable is handed to behind the loop, if that is all it is read for.

    Also an entry of a variable, of which nothing else is read. What asks for its shape alone, or
    whether it is there yet, reads nothing.
    """
    loop = place.loop
    target = ast.parse(name, mode="eval").body
    root = target.value if isinstance(target, ast.Subscript) else target
    if loop is None or not isinstance(root, ast.Name):
        return None
    calls: dict[int, ast.Call] = {}
    for variable, nodes in reads_of(place.scope, root.id):
        load, around = (variable, nodes) if root is target else (nodes[-1], nodes[:-1])
        if not isinstance(load, ast.expr) or ast.unparse(load) != name:
            return None  # something else of the variable that has it
        if not isinstance(getattr(load, "ctx", None), ast.Load) or _reads_no_values(around[-1]):
            continue
        if load.lineno <= (loop.end_lineno or loop.lineno):
            if loop.lineno <= load.lineno and not _is_of_growth(place, load):
                return None  # the loop itself reads what there is so far
            continue
        call = around[-2] if isinstance(around[-1], ast.keyword) else around[-1]
        if not isinstance(call, ast.Call) or call.func is load:
            return None
        calls[id(call)] = call
    return next(iter(calls.values())) if len(calls) == 1 else None


def _reads_no_values(above: ast.AST) -> bool:
    """Whether a read is for the shape, or a comparison with None, by the node right around it."""
    if isinstance(above, ast.Compare):
        return all(isinstance(one, (ast.Is, ast.IsNot)) for one in above.ops)
    if isinstance(above, ast.Call):
        return called_name(above) == "len"
    return isinstance(above, ast.Attribute) and above.attr in _OF_SHAPE


def _is_of_growth(place: Place, load: ast.AST) -> bool:
    """Whether the statement itself reads it, or one that copies it into what that one makes."""
    names = {target.id for target in bound_names(place.statement) if isinstance(target, ast.Name)}
    at = place.program.place(load)
    if at is None or at.statement is place.statement:
        return at is not None
    targets = bound_names(at.statement)
    if isinstance(at.statement, ast.Expr):
        targets = [one.func for one in calls_in(at.statement, "copy_")]
    return any(not isinstance(one, ast.Name) and root_name(one) in names for one in targets)


def _cut(place: Place, newest: ast.Subscript) -> str:
    """The statement with only that part of its value; empty where it is no plain assignment."""
    statement = place.statement
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
        return ""
    names = loaded_names(newest.slice)
    is_bound_later = any(
        isinstance(one, ast.Name) and one.id in names and node.lineno > place.line
        for node in ast.walk(place.scope)
        if isinstance(node, ast.stmt)
        for one in bound_names(node)
    )
    if is_bound_later:
        return ""
    part = ast.Subscript(statement.value, newest.slice, ast.Load())
    return ast.unparse(ast.Assign(statement.targets, part, lineno=statement.lineno))


RULE = GrownByConcatenation()
