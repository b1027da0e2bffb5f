"""running-sum: a sum over the steps hangs on the graph of everything that was added to it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memprof.rules.case import Case
from memprof.rules.finding import Kind
from memprof.rules.graph_lines import behind_calls, holding_places, running_sum
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.rules.source_facts import is_number, makes_number
from memprof.source_code.idioms import Accumulation
from memprof.source_code.patch import Edit, diff, wrapped
from memprof.source_code.program import Place
from memprof.source_code.values import goes_backward, is_python_number, used_as_tensor

__all__ = ["RULE"]


@dataclass(frozen=True, slots=True, eq=False)
class Sum(Cause):
    """The statement that adds, and what it adds to what."""

    place: Place
    added: Accumulation


class RunningSum(GrowthRule[Sum]):
    """`total = total + loss` with a loss that has a graph."""

    name = "running-sum"
    summary = "a sum over the steps keeps the graph of every value added"
    fixes = ("item", "detach")

    def match(self, case: Case) -> Sum | None:
        """A sum where a holder is filled, or where the tensors are made."""
        if not (case.graph or case.finding.kind is Kind.HOST_GROWTH):
            return None
        for place in (*holding_places(case), *behind_calls(case)):
            addition = running_sum(place)
            if addition is not None and not is_python_number(addition.value, case.everywhere):
                return Sum(place, addition)
        return None

    def advice(self, cause: Sum, case: Case) -> Iterator[Advice]:
        """The number where nothing needs the tensor, else the tensor without its graph."""
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
        if number is False or used_as_tensor(place, total, case.everywhere):
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


def _each(parts: Sequence[ast.expr], suffix: str) -> list[Edit]:
    return [edit for part in parts for edit in wrapped(part, suffix)]


RULE = RunningSum()
