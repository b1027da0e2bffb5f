"""tensor-key: a dict has tensors, or the objects that have them, for keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memprof.reference_chain import CYCLES, THROUGH_GRAPH, LinkKind, largest_container
from memprof.rules.case import Case
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.idioms import growing
from memprof.source_code.program import Place

__all__ = ["RULE"]


@dataclass(frozen=True, slots=True, eq=False)
class Keys(Cause):
    """The dict, and the statement that fills it."""

    place: Place | None
    container: str
    """As written; empty where the statement is not here."""
    length: int
    are_tensors: bool
    """And not objects that have tensors."""


class TensorKey(GrowthRule[Keys]):
    """`self.names[output] = name` for every activation that passes."""

    name = "tensor-key"
    summary = "a dict keeps the tensors that are its keys"
    fixes = ("weakref",)
    precedes = ("kept-graph", "unbounded-dict", "growing-container", "grown-by-concatenation")

    def match(self, case: Case) -> Keys | None:
        """A key of a dict in the first chain of references."""
        if case.links & CYCLES or LinkKind.LRU_CACHE in case.links:
            return None  # the keys of a function's cache are its arguments
        for holder in case.finding.holders[:1]:
            for at, link in enumerate(holder.links):
                if link.kind != LinkKind.KEY or at != largest_container(holder.links):
                    continue
                place = case.place_of(holder)
                filling = growing(place)
                below = {one.kind for one in holder.links[at + 1 :]} - THROUGH_GRAPH
                return Keys(
                    place,
                    filling.container if filling is not None else "",
                    link.length,
                    below <= {LinkKind.BASE, LinkKind.GRAD},
                )
        return None

    def advice(self, cause: Keys, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the keys say all
        """Hold the keys weakly."""
        weak = (
            "torch.utils.weak.WeakTensorKeyDictionary"
            if cause.are_tensors
            else ("weakref.WeakKeyDictionary")
        )
        name = f"`{cause.container}` ({cause.length} items)" if cause.container else "A dict"
        what = "tensors" if cause.are_tensors else "objects that have tensors"
        yield Advice(
            "weakref",
            f"{name} has {what} for keys and keeps them: let it hold them weakly (`{weak}()`), or "
            "take each out when it is done with.",
            cause.place,
        )


RULE = TensorKey()
