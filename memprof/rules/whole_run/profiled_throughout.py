"""profiled-throughout: torch's profiler records the whole run, and keeps it in memory."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memprof.records import Site
from memprof.rules.case import Case
from memprof.rules.finding import Kind
from memprof.rules.rule import Advice
from memprof.rules.run_rule import RunMatch, RunRule
from memprof.source_code.idioms import keyword
from memprof.source_code.program import Place, Program, called_name
from memprof.trace import Frame
from memprof.units import format_bytes
from memprof.views.device_readings import series_of
from memprof.views.examination import Examination
from memprof.views.window import site_at

__all__ = ["RULE"]

_LEAST_CALLS = 16
"""Of a model, that were profiled: a few are what a schedule records."""
_NEARLY_ALL = 0.9
"""Of the calls: a schedule leaves most of them out."""
_LEAST_RISE = 64 << 20
"""By which the process has grown since: less is no reason to change anything."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Profiled(RunMatch):
    """Calls of a model that a profiler of torch recorded."""

    profiled: int
    calls: int
    """All that there were, from the first on."""
    made_at: Place | None = None
    """The statement that makes the profiler, if it was found."""


class ProfiledThroughout(RunRule[Profiled]):
    """`with torch.profiler.profile():` around a training, without a schedule."""

    name = "profiled-throughout"
    summary = "torch's profiler records every operator of a run, and keeps it in memory"
    fixes = ("profiler_schedule",)
    kind = Kind.HOST_GROWTH

    def matches(self, examination: Examination) -> Iterator[Profiled]:
        """Where nearly all calls were profiled and the process has grown since the first.

        What a profiler keeps is no tensor's. It becomes several times as much when it stops: each
        operator is then an object of Python's.
        """
        run = examination.run
        found = [one for one in run.findings if one.finding == "profiled"]
        rss = series_of(run, "host", "rss")
        device = max(run.devices, key=lambda one: len(one.steps), default=None)
        if not found or rss is None or device is None:
            return
        last, calls = found[-1], found[-1].details.get("calls", 0)
        if not isinstance(calls, int) or last.count < max(_LEAST_CALLS, _NEARLY_ALL * calls):
            return
        steps = device.steps
        ended = steps.end_us[(steps.last >= last.step) & (steps.end_us > 0)]
        before = rss.values[rss.time_us <= ended[0]] if len(ended) else rss.values[:0]
        rise = int(rss.values.max() - before[-1]) if len(before) else 0
        if rise < _LEAST_RISE:
            return
        programs = [p for one in examination.devices for w in one.windows for p in w.programs]
        made_at = next(_profilers(programs), None)
        yield Profiled(
            device="host",
            nbytes=rise,
            first_step=last.step,
            last_step=int(steps.last.max()),
            profiled=last.count,
            calls=calls,
            made_at=made_at,
            site=_site(made_at) if made_at is not None else Site(),
        )

    def title(self, match: Profiled) -> str:
        """Say how much was profiled, and by how much the process has grown."""
        return (
            f"torch's profiler records {match.profiled:,} of {match.calls:,} calls of the model, "
            f"operator by operator; the process takes {format_bytes(match.nbytes)} more than at "
            "the first"
        )

    def advice(self, match: Profiled, case: Case) -> Iterator[Advice]:  # noqa: ARG002
        """Record a few steps."""
        yield Advice(
            "profiler_schedule",
            "What it records stays in memory until it stops, and takes several times as much when "
            "its events are read: let it record a few steps.",
            match.made_at,
        )


def _site(place: Place) -> Site:
    scope = getattr(place.function, "name", "<module>")
    return site_at(Frame(scope, place.program.filename, place.statement.lineno))


def _profilers(programs: Sequence[Program]) -> Iterator[Place]:
    """Statements that make a profiler without a schedule."""
    for program in programs:
        for node in program.nodes:
            is_made = isinstance(node, ast.Call) and called_name(node) == "profile"
            if is_made and isinstance(node, ast.Call) and keyword(node, "schedule") is None:
                place = program.place(node)
                if place is not None:
                    yield place


RULE = ProfiledThroughout()
