"""Advice on tensors that stay on a device over the steps and are no part of a model."""

from __future__ import annotations

from collections.abc import Iterator

from memprof.reference_chain import LinkKind
from memprof.rules.case import Case, says
from memprof.rules.rule import Advice
from memprof.source_code.program import own_calls
from memprof.units import format_bytes

__all__ = ["advice_on_long_lived"]

_BY_FUNCTION = frozenset({LinkKind.LOCAL, LinkKind.FRAME, LinkKind.CLOSURE})
"""Holders that are over when a function ends: a name can be dropped there."""


def advice_on_long_lived(case: Case) -> Iterator[Advice]:
    """Drop them, keep them on the host or keep less of them, the best first."""
    nbytes = format_bytes(case.finding.bytes)
    holder = case.finding.holders[0] if case.finding.holders else None
    place = case.site or (case.places[0] if case.places else None)
    links = holder.links if holder is not None else []
    local = next((link.name for link in links if link.kind == LinkKind.LOCAL), "")
    if local and any(link.kind == LinkKind.THREAD for link in links):
        why = (
            f"{nbytes} stay there while the thread waits for its next job ({says(holder)}): "
            f"`del {local}` at the end of the loop's body."
        )
        yield Advice("del_ref", why, place)
        return
    by = f", held by {says(holder)}" if holder is not None else ""
    why = f"{nbytes} stay there over the steps{by}"
    if place is not None and own_calls(place.statement, "float", "double"):
        yield Advice(
            "narrow_before_cast",
            f"{why}: keep what it was converted from, and convert the part that a step needs.",
            place,
            remains=0.5,  # at most: float32 of 16 bits; of a byte a quarter
        )
    drop = Advice("del_ref", f"{why}: drop them when they are not used any more.", place)
    host = Advice("cpu_offload", f"{why}: keep them on the host between uses.", place)
    yield from (drop, host) if case.links & _BY_FUNCTION else (host, drop)
