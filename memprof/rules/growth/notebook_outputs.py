"""notebook-outputs: a notebook keeps the result of every cell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memprof.records import Holder
from memprof.reference_chain import LinkKind
from memprof.rules.case import Case
from memprof.rules.notebooks import advice_on_outputs
from memprof.rules.rule import Advice, Cause, GrowthRule

__all__ = ["RULE"]


@dataclass(frozen=True, slots=True, eq=False)
class Outputs(Cause):
    """The notebook's own variable that holds the results."""

    holder: Holder


class NotebookOutputs(GrowthRule[Outputs]):
    """A cell that ends with `net(batch)`: IPython stores it in `Out`, `_` and `_7`."""

    name = "notebook-outputs"
    summary = "a notebook keeps the result of every cell"
    fixes = ("clear_container",)
    precedes = ("kept-graph", "unbounded-dict")

    def match(self, case: Case) -> Outputs | None:
        """One of the notebook's own variables in a chain of references."""
        holder = case.holder(LinkKind.NOTEBOOK)
        return Outputs(holder) if holder is not None else None

    def advice(self, cause: Outputs, case: Case) -> Iterator[Advice]:
        """End the cell without a result, or empty what the notebook stored."""
        yield advice_on_outputs(cause.holder, case)


RULE = NotebookOutputs()
