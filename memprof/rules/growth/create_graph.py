"""create-graph: gradients hold the graph that made them, and that graph the parameters."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memprof.records import Holder
from memprof.reference_chain import THROUGH_GRAPH, LinkKind
from memprof.rules.case import Case
from memprof.rules.graph_lines import on_the_way
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.idioms import keyword, last_name, written_entries
from memprof.source_code.program import Place, Program, called_name, calls_in
from memprof.source_code.settings import may_be_true, meanings
from memprof.trace import Category
from memprof.views.owners import CATEGORY_NAMES

__all__ = ["RULE"]

_OF_MODEL = frozenset({LinkKind.MODULE_ATTRIBUTE, LinkKind.PARAMETER, LinkKind.BUFFER})
_SETTING = "create_graph"
_LEARNING = ("backward", "manual_backward")
_PARTIAL = "partial"
_POSITION = 2
"""Of the setting among the arguments of ``Tensor.backward``, from 0."""
_WITH_OWNER = 2
"""Links: the variable, and what it is."""
_BY_GRADIENT = frozenset({LinkKind.GRAD, LinkKind.CPP_CYCLE, LinkKind.CYCLE})


@dataclass(frozen=True, slots=True, eq=False)
class DifferentiableGradient(Cause):
    """The call that asks for it."""

    place: Place | None
    of_parameters: bool
    """The gradients are those of a model's parameters."""


class CreateGraph(GrowthRule[DifferentiableGradient]):
    """`loss.backward(create_graph=True)`, after which `.grad` and its leaf hold each other."""

    name = "create-graph"
    summary = "gradients of `backward(create_graph=True)` hold the graph that made them"
    fixes = ("set_to_none", "autograd_grad")

    def match(self, case: Case) -> DifferentiableGradient | None:
        """Such a call in a function that holds the tensors or leads to them."""
        by_gradient = (
            case.links & _BY_GRADIENT or case.finding.category == CATEGORY_NAMES[Category.GRADIENT]
        )
        lines = {(frame.filename, frame.line) for frame, _ in case.frames}
        for place in {id(place.scope): place for place in on_the_way(case)}.values():
            for call in _calls(place, case.programs):
                if not (case.graph or by_gradient or _is_alone(case)):
                    made = {(place.program.filename, line) for line in _lines(call)}
                    if not made & lines:
                        continue
                return DifferentiableGradient(place.program.place(call), _is_of_model(case))
        for place, call in _called(case) if _is_alone(case) else ():
            return DifferentiableGradient(place.program.place(call), of_parameters=True)
        if not _goes_round_by_gradient(case):
            return None
        calls = [
            (at, is_sure)
            for program in case.programs
            for call, is_sure in _asking_calls(program, program.tree, case.programs)
            if (at := program.place(call)) is not None
        ]
        sure = [at for at, is_sure in calls if is_sure]
        if sure and _has_own_graph(case):
            return DifferentiableGradient(sure[0], _is_of_model(case))
        # The cycle says what it is: the one call that may ask for it did.
        return DifferentiableGradient(calls[0][0], _is_of_model(case)) if len(calls) == 1 else None

    def advice(self, cause: DifferentiableGradient, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the call says all
        """Drop the gradients when they have been used, or do not store them in the leaves."""
        dropped = Advice(
            "set_to_none",
            "With `create_graph=True` a gradient holds the graph that made it, and that the "
            "leaf: set `.grad = None` once the gradients have been used. An optimizer's "
            "`zero_grad` does so for its own parameters alone.",
            cause.place,
            typed="model.zero_grad()" if cause.of_parameters else "x.grad = None",
        )
        returned = Advice(
            "autograd_grad",
            "`torch.autograd.grad(…, create_graph=True)` returns the gradients and stores none "
            "in `.grad`, so that no cycle comes about.",
            cause.place,
        )
        # Parameters are emptied by `zero_grad`; an input that takes a gradient by nothing.
        yield from (dropped, returned) if cause.of_parameters else (returned, dropped)


def _is_of_model(case: Case) -> bool:
    return bool(case.links & {LinkKind.PARAMETER, LinkKind.MODULE_ATTRIBUTE})


def _calls(place: Place, programs: Sequence[Program]) -> Iterator[ast.Call]:
    """``backward(create_graph=True)`` in a statement's function."""
    for call, is_sure in _asking_calls(place.program, place.scope, programs):
        if is_sure:
            yield call


def _asking_calls(
    program: Program, scope: ast.AST, programs: Sequence[Program]
) -> Iterator[tuple[ast.Call, bool]]:
    """Such calls in a part of a file, also by a variable, or by a dict of keyword arguments.

    Each with whether what it is given is true; of others nothing is known but that it is not false.
    """
    for call in calls_in(scope, *_LEARNING, _PARTIAL):
        place = program.place(call)
        of_others = called_name(call) == _PARTIAL and not _is_of_backward(call)
        if place is None or of_others:
            continue
        setting = keyword(call, _SETTING) or _by_position(call)
        settings = [(place, setting)] if setting is not None else []
        for one in call.keywords if setting is None else ():
            written = meanings(place, one.value, programs) if one.arg is None else ()
            settings += [
                (at, value)
                for at, entries in written
                for key, value in written_entries(entries)
                if isinstance(key, ast.Constant) and key.value == _SETTING
            ]
        if any(may_be_true(at, value, programs) for at, value in settings):
            yield call, True
        elif settings and not all(_is_off(value) for _, value in settings):
            yield call, False


def _is_of_backward(call: ast.Call) -> bool:
    """``partial(torch.autograd.backward, …)``."""
    return bool(call.args) and last_name(ast.unparse(call.args[0])) in _LEARNING


def _is_off(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and not value.value


def _by_position(call: ast.Call) -> ast.expr | None:
    """The third argument of a tensor's method, the fourth of ``torch.autograd.backward``."""
    of_torch = isinstance(call.func, ast.Name) or (
        isinstance(call.func, ast.Attribute)
        and last_name(ast.unparse(call.func.value)) == "autograd"
    )
    at = _POSITION + of_torch
    is_known = not any(isinstance(one, ast.Starred) for one in call.args)
    return call.args[at] if is_known and len(call.args) > at else None


def _goes_round_by_gradient(case: Case) -> bool:
    """Whether a chain has a gradient, a graph, and a cycle that C++ owns a part of."""
    kinds = [{link.kind for link in holder.links} for holder in case.finding.holders]
    wanted = {LinkKind.GRAD, LinkKind.CPP_CYCLE}
    return any(wanted <= one and bool(THROUGH_GRAPH & one) for one in kinds)


def _has_own_graph(case: Case) -> bool:
    """Whether a chain goes from a gradient into a graph that C++ keeps with it: its own."""
    for holder in case.finding.holders:
        kinds = [link.kind for link in holder.links]
        if LinkKind.GRAD in kinds and LinkKind.CPP_CYCLE in kinds:
            return bool(THROUGH_GRAPH & set(kinds[kinds.index(LinkKind.GRAD) :]))
    return False


def _called(case: Case) -> Iterator[tuple[Place, ast.Call]]:
    """Such calls in functions that those on the way to what stays call, with a place there."""
    for _, place in case.frames:
        for one in calls_in(place.scope):
            if not isinstance(one.func, ast.Name):
                continue
            for function in place.program.functions(one.func.id):
                within = place.program.place(function.body[0])
                if within is not None:
                    calls = _calls(within, case.programs)
                    yield from ((within, call) for call in calls)


def _lines(call: ast.Call) -> range:
    """The lines that a call is written in: what it makes has one of them in its stack."""
    return range(call.lineno, (call.end_lineno or call.lineno) + 1)


def _is_alone(case: Case) -> bool:
    """Whether a model's parameters stay that nothing of the program's leads to.

    A copy of the model has come and gone in the function: only its gradients can hold it. A
    variable of the function has one of several, the last.
    """
    growth = case.finding.growth
    return growth.has_parameters and not any(
        holder.is_named and not (growth.times > 1 and _is_variable(holder))
        for holder in case.finding.holders
    )


def _is_variable(holder: Holder) -> bool:
    """Whether a variable of a function is the model or its optimizer, and no container of them."""
    if len(holder.links) < _WITH_OWNER or holder.links[0].kind != LinkKind.LOCAL:
        return False
    return holder.links[1].kind in _OF_MODEL | {LinkKind.OPTIMIZER_STATE}


RULE = CreateGraph()
