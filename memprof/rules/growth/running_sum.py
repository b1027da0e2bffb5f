"""running-sum: a sum over the steps hangs on the graph of everything that was added to it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memprof.rules.case import Case
from memprof.rules.finding import Kind
from memprof.rules.graph_lines import (
    added_within_calls,
    behind_calls,
    holding_places,
    running_sum,
)
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.rules.source_facts import is_number, makes_number
from memprof.source_code.idioms import Accumulation, last_name, moving_average
from memprof.source_code.patch import Edit, diff, wrapped
from memprof.source_code.program import (
    Place,
    Program,
    bound_names,
    called_name,
    calls_in,
    loaded_names,
)
from memprof.source_code.values import goes_backward, is_python_number, used_as_tensor
from memprof.trace import Phase
from memprof.views.window import Window

__all__ = ["RULE", "innermost"]

_NAMES = (ast.Name, ast.Attribute, ast.Subscript)


@dataclass(frozen=True, slots=True, eq=False)
class Sum(Cause):
    """The statement that adds, and what it adds to what."""

    place: Place
    added: Accumulation
    of_object: bool = False
    """It is an average that an object moves: of parameters, say, and hardly of one number."""


@dataclass(frozen=True, slots=True, eq=False)
class Reduction(Cause):
    """The statement that has a function of the library add values up, and what these are."""

    place: Place
    values: ast.expr
    has_backward_pass: bool
    """The job has one, of anything."""


@dataclass(frozen=True, slots=True, eq=False)
class Step(Cause):
    """The statement by which a loop binds what it adds to a sum that another sum is made of."""

    place: Place
    value: ast.expr
    sums: tuple[str, ...]
    """As written, from the one that keeps the graph inwards: ``pos``, ``vel``."""


class RunningSum(GrowthRule[Sum | Reduction | Step]):
    """`total = total + loss` with a loss that has a graph."""

    name = "running-sum"
    summary = "a sum over the steps keeps the graph of every value added"
    fixes = ("item", "detach", "no_grad")

    def match(self, case: Case) -> Sum | Reduction | Step | None:
        """A sum where a holder is filled, or where the tensors are made.

        Of sums of one another what the innermost adds. Where all that is known is a graph, also an
        average that an object moves, and the sum that ``functools.reduce`` makes.
        """
        if not (case.graph or case.finding.kind is Kind.HOST_GROWTH):
            return None
        holding = holding_places(case)
        means = (one for place in holding for one in _sums_read(place))
        for place in (*holding, *means, *behind_calls(case), *added_within_calls(case)):
            addition = running_sum(place)
            if addition is not None and not is_python_number(addition.value, case.everywhere):
                return innermost(place, addition, case.everywhere) or Sum(place, addition)
        if case.finding.kind is Kind.HOST_GROWTH:
            for place in holding:
                average = moving_average(place)
                if average is not None:
                    return Sum(place, average, of_object=True)
        return _reduction(case)

    def advice(self, cause: Sum | Reduction | Step, case: Case) -> Iterator[Advice]:
        """The number where nothing needs the tensor, else the tensor without its graph."""
        if isinstance(cause, Step):
            written, (outer, *inner) = ast.unparse(cause.value), cause.sums
            why = (
                f"`{outer}` is made of `{inner[-1]}`, and that adds up `{written}` with its graph, "
                "which keeps every step's activations: go on with it detached."
            )
            yield Advice("detach", why, cause.place, typed=f"{written} = {written}.detach()")
            return
        if isinstance(cause, Reduction):
            why = (
                f"The sum hangs on the graph of every value of `{ast.unparse(cause.values)}`: have "
                "them come without their graphs"
            )
            if cause.has_backward_pass:
                yield Advice("detach", f"{why} (`.detach()`).", cause.place)
            else:
                yield Advice("no_grad", f"{why}, under `torch.no_grad()`.", cause.place)
            return
        place, value = cause.place, cause.added.value
        host = case.finding.kind is Kind.HOST_GROWTH
        what = "graph nodes in host memory" if host else "every step's activations"
        why = f"The sum hangs on the graph of every `{ast.unparse(value)}` added and keeps {what}"
        total = ast.unparse(cause.added.total)
        if goes_backward(place, total, case.everywhere):
            apart = f"{why}: begin each backward pass at what its step adds, and add that detached."
            yield Advice("detach", apart, place)
            return
        number = makes_number(case, place)
        number = is_number(case, place, value) if number is None else number
        parts = (value, *cause.added.others)
        detach_patch = diff(place.program, *_each(parts, ".detach()"))
        is_tensor = number is False or cause.of_object
        if is_tensor or used_as_tensor(place, total, case.everywhere):
            yield Advice("detach", f"{why}: add it detached.", place, patch=detach_patch)
            return
        yield Advice(
            "item",
            f"{why}: add the number (`.item()` waits for the device).",
            place,
            patch=diff(place.program, *_each(parts, ".item()")) if number else "",
        )
        yield Advice(
            "detach",
            f"`.detach()` cuts the graph off as well, without waiting; it keeps {what} no longer.",
            place,
            patch=detach_patch,
            otherwise=True,
        )


def innermost(place: Place, addition: Accumulation, programs: Sequence[Program]) -> Step | None:
    """What the innermost adds of sums that a loop makes of one another, where it is made there.

    ``vel = vel + dt * force; pos = pos + dt * vel; force = forces(pos)``: without the graph of
    what is added to `pos`, that of `vel` is still there. None where the function goes backward
    through the innermost sum.
    """
    within = place.loop
    if within is None:
        return None
    sums = [
        one
        for node in ast.walk(within)
        if isinstance(node, (ast.Assign, ast.AugAssign))
        and (at := place.program.place(node)) is not None
        and at.scope is place.scope
        and (one := running_sum(at)) is not None
    ]
    totals, value = [ast.unparse(addition.total)], addition.value
    while True:
        read = loaded_names(value)
        inner = [one for one in sums if ast.unparse(one.total) in read - set(totals)]
        if not inner:
            break
        totals.append(ast.unparse(inner[0].total))
        value = inner[0].value
    if len(totals) == 1 or goes_backward(place, totals[-1], programs):
        return None
    makers = [
        (at, target)
        for node in ast.walk(within)
        if isinstance(node, ast.Assign) and any(calls_in(node.value))
        for target in bound_names(node)
        if isinstance(target, ast.Name)
        and target.id in loaded_names(value) - set(totals)
        and (at := place.program.place(node)) is not None
    ]
    return Step(*makers[0], tuple(totals)) if len(makers) == 1 else None


def _sums_read(place: Place) -> Iterator[Place]:
    """Additions of the same function to what a statement reads: ``mean = total / count``."""
    value = getattr(place.statement, "value", None)
    if not isinstance(value, (ast.BinOp, ast.Call)):
        return
    read = {ast.unparse(one) for one in ast.walk(value) if isinstance(one, _NAMES)}
    for node in ast.walk(place.scope):
        one = place.program.place(node) if isinstance(node, (ast.Assign, ast.AugAssign)) else None
        addition = running_sum(one) if one is not None and one.scope is place.scope else None
        if one is not None and addition is not None and ast.unparse(addition.total) in read:
            yield one


def _reduction(case: Case) -> Reduction | None:
    """The only ``functools.reduce(operator.add, values)`` of the program, if it is no loss."""
    if case.finding.kind is not Kind.HOST_GROWTH or case.finding.holders:
        return None
    windows = [one for device in case.examination.devices for one in device.windows]
    programs = list({one.filename: one for window in windows for one in window.programs}.values())
    reductions = [
        Reduction(place, call.args[1], _has_backward_pass(windows))
        for program in programs
        for call in calls_in(program.tree, "reduce")
        if len(call.args) > 1 and _is_addition(call.args[0])
        if _come_as_tensors(call.args[1], programs)
        if (place := program.place(call)) is not None
    ]
    if len(reductions) != 1:
        return None
    place = reductions[0].place
    names = [ast.unparse(target) for target in bound_names(place.statement)]
    if len(names) != 1 or goes_backward(place, names[0], programs):
        return None
    return reductions[0]


def _come_as_tensors(values: ast.expr, programs: Sequence[Program]) -> bool:
    """Whether a generator, the program's own or an expression, computes values one by one.

    And no Python numbers, as far as the source shows.
    """
    if isinstance(values, ast.GeneratorExp):
        given = [values.elt]
    else:
        functions = [f for one in programs for f in one.functions(called_name(values))]
        nodes = [node for function in functions for node in ast.walk(function)]
        given = [one.value for one in nodes if isinstance(one, ast.Yield) and one.value is not None]
    return bool(given) and all(
        isinstance(one, (ast.Call, ast.Name, ast.BinOp)) and not is_python_number(one, programs)
        for one in given
    )


def _has_backward_pass(windows: Sequence[Window]) -> bool:
    phases = {label.phase for window in windows for label in window.trace.tables.labels}
    return Phase.BACKWARD in phases


def _is_addition(function: ast.expr) -> bool:
    """``operator.add``, or ``lambda total, value: total + value``."""
    if isinstance(function, ast.Lambda):
        return isinstance(function.body, ast.BinOp) and isinstance(function.body.op, ast.Add)
    return last_name(ast.unparse(function)) in ("add", "iadd")


def _each(parts: Sequence[ast.expr], suffix: str) -> list[Edit]:
    return [edit for part in parts for edit in wrapped(part, suffix)]


RULE = RunningSum()
