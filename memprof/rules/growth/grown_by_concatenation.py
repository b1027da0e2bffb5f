"""grown-by-concatenation: a tensor is replaced in every step by one that has more appended."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from memprof.rules.case import Case
from memprof.rules.containers import filled_container
from memprof.rules.graph_lines import on_the_way
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.idioms import grown_by_concatenation
from memprof.source_code.parts_read import newest_read
from memprof.source_code.program import Place

__all__ = ["RULE"]


@dataclass(frozen=True, slots=True, eq=False)
class Concatenation(Cause):
    """The statement that joins, and the name that it binds again."""

    place: Place
    name: str
    newest: ast.Subscript | None = None
    """The one part of it that is read, where that is what was appended last: ``bank[-1024:]``."""


class GrownByConcatenation(GrowthRule[Concatenation]):
    """`preds = torch.cat([preds, new])` in every step."""

    name = "grown-by-concatenation"
    summary = "a tensor is joined with more in every step"
    fixes = ("right_size", "clear_container", "cpu_offload", "preallocate")
    yields_to = ("kept-graph", "running-sum", "carried-state")

    def match(self, case: Case) -> Concatenation | None:
        """A statement that joins what it binds with something else, and no table of such."""
        table = None if case.finding.growth.is_replaced else filled_container(case)
        if table is not None and table.filling.keyed:
            return None
        for place in on_the_way(case):
            name = grown_by_concatenation(place)
            if name:
                return Concatenation(place, name, newest_read(case.everywhere, place, name))
        return None

    def advice(self, cause: Concatenation, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the statement says all
        """Keep what is read; begin it anew; collect on the host, or fill one of the final size."""
        if cause.newest is not None:
            part = ast.unparse(cause.newest)
            yield Advice(
                "right_size",
                f"Of `{cause.name}` nothing but `{part}` is read (line {cause.newest.lineno}): "
                f"keep no more of what is joined (`[{ast.unparse(cause.newest.slice)}]`).",
                cause.place,
                typed=_cut(cause.place, cause.newest),
            )
        yield Advice(
            "clear_container",
            f"`{cause.name}` is made longer again and again: begin it anew when it has been used, "
            "and keep of each part no more than is needed.",
            cause.place,
        )
        why = f"`{cause.name}` is replaced by a larger copy of itself, and both are there meanwhile"
        yield Advice("cpu_offload", f"{why}: collect the parts in host memory.", cause.place)
        once = f"{why}: allocate the final size once."
        yield Advice("preallocate", once, cause.place, otherwise=True)


def _cut(place: Place, newest: ast.Subscript) -> str:
    """The statement with only that part of its value; empty where it is no plain assignment."""
    statement = place.statement
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
        return ""
    part = ast.Subscript(statement.value, newest.slice, ast.Load())
    return ast.unparse(ast.Assign(statement.targets, part, lineno=statement.lineno))


RULE = GrownByConcatenation()
