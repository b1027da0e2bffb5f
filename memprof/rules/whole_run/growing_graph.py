"""growing-graph: the autograd graph becomes longer in every step, in the host's memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memprof.records import Finding, Site
from memprof.rules.finding import Kind
from memprof.rules.run_rule import RunMatch, RunRule
from memprof.rules.same_memory import ANY_GROWTH, Overlap
from memprof.run import Run
from memprof.trace import NOT_RECORDED
from memprof.views.examination import Examination

__all__ = ["RULE"]

_LEAST_LOOKS = 2
"""A look in the job notes it only when the graph has grown at four looks; this many such notes."""
_STILL = 0.5
"""Of the steps that were looked at: a graph that grew last before that has stopped."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LongerGraph(RunMatch):
    """A chain of graph nodes without tensor bytes, and the tensor at its end."""

    nodes_per_step: float


class GrowingGraph(RunRule[LongerGraph]):
    """`total = total + loss` after `backward()`: nodes on the host, no bytes on the device.

    Who holds the graph decides what to change, and that is for the rules of growth to say.
    """

    name = "growing-graph"
    summary = "the autograd graph grows in every step, in host memory"
    kind = Kind.HOST_GROWTH
    yields_to = (ANY_GROWTH,)
    overlap = Overlap.HOLDER  # the graph hangs on something whose tensors grow anyway

    def matches(self, examination: Examination) -> Iterator[LongerGraph]:
        """The longest chain of graph nodes that kept growing up to the end of the recording."""
        looks = [one for one in examination.run.findings if one.finding == "host_growth"]
        if len(looks) < _LEAST_LOOKS or looks[-1].step < _STILL * _last_step(examination.run):
            return
        last = looks[-1]
        rate = last.details.get("nodes_per_step")
        yield LongerGraph(
            device="host",
            first_step=looks[0].step,
            last_step=last.step,
            site=_site(last),
            holders=tuple(last.holders),
            nodes_per_step=float(rate) if isinstance(rate, (int, float)) else 0.0,
        )

    def title(self, match: LongerGraph) -> str:
        """Say by how much, and what holds it."""
        holders = match.holders
        by = holders[0].description if holders else "a tensor whose holder was not found"
        rate = f"{match.nodes_per_step:.0f} nodes per step"
        return f"the autograd graph grows by {rate}, on the host: {by}"


def _site(look: Finding) -> Site:
    holder = look.holders[0] if look.holders else None
    return Site(holder.filename, holder.line, "", holder.code) if holder else Site()


def _last_step(run: Run) -> int:
    """The last step of which anything is known: where nothing is recorded, nobody looks."""
    last = -1
    for device in run.devices:
        steps = device.steps
        is_known = (steps.allocated != NOT_RECORDED) | (steps.window != NOT_RECORDED)
        last = max(last, int(steps.last[is_known].max(initial=-1)))
    return last


RULE = GrowingGraph()
