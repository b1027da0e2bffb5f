"""kept-by-iterator: `itertools.cycle` or `tee` keeps what it has passed on."""

from __future__ import annotations

from collections.abc import Iterator

from memprof.rules.case import Case
from memprof.rules.keeping_iterators import KeepingIterator, advice_on_iterator, keeping_iterator
from memprof.rules.rule import Advice, GrowthRule

__all__ = ["RULE"]


class KeptByIterator(GrowthRule[KeepingIterator]):
    """`itertools.cycle(loader)`: every batch of the first pass is kept for the next ones."""

    name = "kept-by-iterator"
    summary = "an iterator of itertools keeps what it has passed on"
    fixes = ("reiterate", "del_ref")
    precedes = ("small-view", "kept-graph", "growing-container", "unbounded-dict")

    def match(self, case: Case) -> KeepingIterator | None:
        """An iterator of ``itertools`` in a chain of references."""
        return keeping_iterator(case)

    def advice(self, cause: KeepingIterator, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the iterator says all
        """Begin anew what is cycled through; let go of the branch that is not read."""
        yield from advice_on_iterator(cause)


RULE = KeptByIterator()
