"""create-graph: gradients hold the graph that made them, and that graph the parameters."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from memprof.records import Holder
from memprof.reference_chain import LinkKind
from memprof.rules.case import Case
from memprof.rules.graph_lines import on_the_way
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.idioms import keyword
from memprof.source_code.program import Place, calls_in
from memprof.trace import Category
from memprof.views.owners import CATEGORY_NAMES

__all__ = ["RULE"]

_OF_MODEL = frozenset({LinkKind.MODULE_ATTRIBUTE, LinkKind.PARAMETER, LinkKind.BUFFER})
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
            for call in _calls(place):
                if not (case.graph or by_gradient or _is_alone(case)):
                    made = {(place.program.filename, line) for line in _lines(call)}
                    if not made & lines:
                        continue
                of_model = case.links & {LinkKind.PARAMETER, LinkKind.MODULE_ATTRIBUTE}
                return DifferentiableGradient(place.program.place(call), bool(of_model))
        for place, call in _called(case) if _is_alone(case) else ():
            return DifferentiableGradient(place.program.place(call), of_parameters=True)
        return None

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


def _calls(place: Place) -> Iterator[ast.Call]:
    """``backward(create_graph=True)`` in a statement's function."""
    for call in calls_in(place.scope, "backward"):
        value = keyword(call, "create_graph")
        if isinstance(value, ast.Constant) and value.value is True:
            yield call


def _called(case: Case) -> Iterator[tuple[Place, ast.Call]]:
    """Such calls in functions that those on the way to what stays call, with a place there."""
    for _, place in case.frames:
        for one in calls_in(place.scope):
            if not isinstance(one.func, ast.Name):
                continue
            for function in place.program.functions(one.func.id):
                within = place.program.place(function.body[0])
                if within is not None:
                    yield from ((within, call) for call in _calls(within))


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
