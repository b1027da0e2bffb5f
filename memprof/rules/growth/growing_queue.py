"""growing-queue: from step to step more waits in a queue without a bound."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memprof.rules.case import Case
from memprof.rules.queues import bounded, has_one_thread, queue_at, queue_made_at, queue_name
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.program import Place

__all__ = ["RULE"]


@dataclass(frozen=True, slots=True, eq=False)
class Waiting(Cause):
    """The queue, and where it is made or filled."""

    name: str
    items: int
    """That the last search saw in it."""
    place: Place | None


class GrowingQueue(GrowthRule[Waiting]):
    """`self.jobs = queue.Queue()`, and a thread that uploads more slowly than others put."""

    name = "growing-queue"
    summary = "more and more waits in a queue without a bound"
    fixes = ("bound_queue",)
    precedes = ("growing-container", "unbounded-dict", "kept-graph", "collected-models")

    def match(self, case: Case) -> Waiting | None:
        """A queue without a bound in a chain of references."""
        for holder in case.finding.holders:
            at = queue_at(holder)
            if at is not None:
                name = queue_name(holder.links[:at])
                place = queue_made_at(case, holder.links[:at]) or case.place_of(holder)
                return Waiting(name, holder.links[at + 1].length, place)
        return None

    def advice(self, cause: Waiting, case: Case) -> Iterator[Advice]:
        """Let what fills it wait, where another thread takes out."""
        of_one_thread = has_one_thread(case.everywhere, cause.name)
        yield bounded(cause.name, cause.items, cause.place, of_one_thread=of_one_thread)


RULE = GrowingQueue()
