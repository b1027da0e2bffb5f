"""Growth on the host without tensor bytes: autograd graphs that become longer from step to step."""

from __future__ import annotations

from memprof.records import Finding, Site
from memprof.rules.finding import Found, Kind
from memprof.run import Run

__all__ = ["host_growth"]

_LEAST_LOOKS = 2
_STILL = 0.5
"""Of the steps: a graph that was last seen to grow before that has stopped."""


def host_growth(run: Run) -> tuple[Found, ...]:
    """The longest chain of graph nodes that kept growing up to the end of the recording."""
    looks = [one for one in run.findings if one.finding == "host_growth"]
    if len(looks) < _LEAST_LOOKS or looks[-1].step < _STILL * _last_step(run):
        return ()
    last = looks[-1]
    rate = last.details.get("nodes_per_step")
    rate = float(rate) if isinstance(rate, (int, float)) else 0.0
    held = last.holders[0] if last.holders else None
    by = held.description if held else "a tensor whose holder was not found"
    return (
        Found(
            kind=Kind.HOST_GROWTH,
            device="host",
            site=_site(last),
            title=f"the autograd graph grows by {rate:.0f} nodes a step, on the host: {by}",
            confidence=min(0.95, 0.6 + 0.1 * len(looks)),
            first_step=looks[0].step,
            last_step=last.step,
            holders=tuple(last.holders),
        ),
    )


def _site(look: Finding) -> Site:
    held = look.holders[0] if look.holders else None
    return Site(held.filename, held.line, "", held.code) if held else Site()


def _last_step(run: Run) -> int:
    return max((int(d.steps.last[-1]) for d in run.devices if len(d.steps)), default=-1)
