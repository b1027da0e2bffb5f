"""Rules for objects that collect what they are called with: metrics, recorders, histories."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from memprof.advice.case import Case, Proposal
from memprof.advice.source import growing, last_name
from memprof.analysis.program import calls_in
from memprof.records import Holder

__all__ = ["rules"]


def rules(case: Case) -> Iterator[Proposal]:
    """``clear_container``, at the statement in the stack that calls the object.

    Not where the program's own source fills the container: that is the line to mend.
    """
    if case.of_model or not case.grows or any(growing(place) for place in case.places):
        return
    for holder in case.found.holders:
        owner, kept, length = _collected_in(holder)
        for _, place in case.frames if owner else ():
            call = next((c for c in calls_in(place.statement) if owner in _receivers(c)), None)
            if call is not None and growing(place) is None:
                yield Proposal(
                    "clear_container",
                    0.8,
                    f"At every call of `{ast.unparse(call.func)}` its `{kept}` ({length} items) "
                    "becomes longer: empty it when its result is done with (`reset()`, `clear()`).",
                    place,
                )
                return


def _collected_in(holder: Holder) -> tuple[str, str, int]:
    """The name of the object whose container holds it, the container's, and its length."""
    at = next((at for at, link in enumerate(holder.links) if link.kind == "item"), 0)
    names = ".".join(link.name for link in holder.links[:at]).split(".")
    if len(names) < 2 or holder.links[at].length < 2:
        return "", "", 0
    return names[-2], names[-1], holder.links[at].length


def _receivers(call: ast.Call) -> set[str]:
    """``{"update", "metric"}`` of ``self.metric.update(…)``: what is called, and on what."""
    function = call.func
    inner = function.value if isinstance(function, ast.Attribute) else function
    return {last_name(ast.unparse(function)), last_name(ast.unparse(inner))}
