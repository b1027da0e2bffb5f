"""saved-view: a custom Function saves a view of its own output."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from memprof.reference_chain import LinkKind
from memprof.rules.case import Case
from memprof.rules.graph_lines import holding_places
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.idioms import is_autograd_function
from memprof.source_code.opposite_methods import parents_of
from memprof.source_code.patch import diff, wrapped
from memprof.source_code.program import Place, assigned, called_name, calls_in, root_name
from memprof.source_code.returned_values import called_function
from memprof.source_code.verbs import VIEWING

__all__ = ["RULE"]

_SAVING = "save_for_backward"
_OF_NODE = "Backward"
"""How the name of a Function's node ends: ``GateBackward`` of ``Gate``."""
_SAVED_AT = re.compile(r"tensors\[(\d+)\]")
"""What a node calls those that a Function has saved, in order."""
_SAVED = frozenset({LinkKind.CPP_CYCLE, LinkKind.SAVED_TENSOR})


@dataclass(frozen=True, slots=True, eq=False)
class SavedViews(Cause):
    """The call that saves, and those of its arguments that are views."""

    place: Place
    views: tuple[ast.expr, ...]


class SavedView(GrowthRule[SavedViews]):
    """`ctx.save_for_backward(y[1])` in a Function that returns `y`."""

    name = "saved-view"
    summary = "a custom Function saves a view of its own output"
    fixes = ("clone_view",)
    precedes = ("kept-graph",)

    def match(self, case: Case) -> SavedViews | None:
        """A call of ``save_for_backward`` with a part of something, where a graph holds itself."""
        if not case.links & _SAVED:
            return None
        certain = next(_in_cycles(case), None)
        if certain is not None:
            return certain
        for near in holding_places(case):
            function = near.function if is_autograd_function(near) else None
            for call in calls_in(function, _SAVING) if function is not None else ():
                views = tuple(a for a in call.args if isinstance(a, (ast.Subscript, ast.Call)))
                place = near.program.place(call)
                if views and place is not None:
                    return SavedViews(place, views)
        return None

    def advice(self, cause: SavedViews, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the call says all
        """Save a clone."""
        edits = (edit for view in cause.views for edit in wrapped(view, ".clone()"))
        yield Advice(
            "clone_view",
            f"`{ast.unparse(cause.views[0])}` is a view of an output: its graph node saves a "
            "tensor whose base has that node as its own `grad_fn`.",
            cause.place,
            patch=diff(cause.place.program, *edits),
        )


def _in_cycles(case: Case) -> Iterator[SavedViews]:
    """Where what a Function saves is a view, as a chain says, and the view's base has its node."""
    for holder in case.finding.holders:
        for saved, below in pairwise(holder.links):
            at = _SAVED_AT.fullmatch(saved.name)
            is_view = saved.kind is LinkKind.SAVED_TENSOR and below.kind is LinkKind.BASE
            if not is_view or at is None or LinkKind.CPP_CYCLE not in case.links:
                continue
            for place, call in _saving(case, saved.type_name.removesuffix(_OF_NODE)):
                position = int(at[1])
                starred = any(isinstance(one, ast.Starred) for one in call.args)
                if starred or position >= len(call.args):
                    continue
                whole = _viewed(place, call.args[position])
                views = [
                    one
                    for number, one in enumerate(call.args)
                    if number == position or (whole and _viewed(place, one) == whole)
                ]
                yield SavedViews(place, tuple(views))


def _saving(case: Case, class_name: str) -> Iterator[tuple[Place, ast.Call]]:
    """Calls of ``save_for_backward`` by the methods of a class, and by functions with its context.

    Nothing where several classes have the name.
    """
    classes = [
        (program, one)
        for program in case.programs
        for one in program.classes()
        if one.name == class_name
    ]
    if len(classes) != 1:
        return
    ((program, class_),) = classes
    for parent in (class_, *parents_of(program, class_.name).values()):
        for call in calls_in(parent, _SAVING):
            place = program.place(call)
            if place is not None:
                yield place, call
        for call in calls_in(parent):
            at = program.place(call)
            spec = at.function.args if at is not None and at.function is not None else None
            contexts = {one.arg for one in (*spec.posonlyargs, *spec.args)[:1]} if spec else set()
            is_handed = any(isinstance(a, ast.Name) and a.id in contexts for a in call.args)
            called = called_function(at, call, case.programs) if at and is_handed else None
            for inner in calls_in(called[1], _SAVING) if called is not None else ():
                place = called[0].place(inner) if called is not None else None
                if place is not None:
                    yield place, inner


def _viewed(place: Place, value: ast.expr | None) -> str:
    """The variable that a value is a part of: ``out`` of ``a``, after ``a, b = out.chunk(2)``.

    Empty where it is none, or that is not known.
    """
    if isinstance(value, ast.Subscript):
        return root_name(value)
    if isinstance(value, ast.Call) and called_name(value) in VIEWING:
        root = root_name(value)
        return root_name(value.args[0]) if root == "torch" and value.args else root
    roots = {
        _viewed(place, made_of)
        for node in ast.walk(place.scope)
        for target, made_of in assigned(node)
        if isinstance(value, ast.Name) and ast.unparse(target) == value.id
        if not isinstance(made_of, ast.Name)
    }
    return roots.pop() if len(roots) == 1 else ""


RULE = SavedView()
