"""Advice on results of cells that a notebook stores."""

from __future__ import annotations

from memprof.records import Holder
from memprof.rules.case import Case, says
from memprof.rules.rule import Advice

__all__ = ["advice_on_outputs"]


def advice_on_outputs(holder: Holder, case: Case) -> Advice:
    """End the cell without a result, or empty what the notebook stored."""
    return Advice(
        "clear_container",
        f"The notebook keeps the result of every cell ({says(holder)}): end the cell with `;`, "
        "or `%reset out`.",
        case.place_of(holder) or case.site,
    )
