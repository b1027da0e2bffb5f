"""unreset-metric: an object collects values, and its method that empties it is not called."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memprof.rules.case import Case
from memprof.rules.containers import FilledContainer, filled_container
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.idioms import emptied_by, last_name

__all__ = ["RULE"]


@dataclass(frozen=True, slots=True, eq=False)
class FilledMetric(Cause):
    """The container, and the method of its class that empties it."""

    container: FilledContainer
    method: str


class UnresetMetric(GrowthRule[FilledMetric]):
    """`self.values.append(…)` in `update()`, and a `reset()` beside it."""

    name = "unreset-metric"
    summary = "a metric collects values and is never reset"
    fixes = ("reset_metric",)
    yields_to = ("unbounded-dict", "kept-graph", "registered-callback")

    def match(self, case: Case) -> FilledMetric | None:
        """A container whose class has a method that empties it."""
        container = filled_container(case)
        if container is None:
            return None
        method = emptied_by(container.place, last_name(container.filling.container))
        return FilledMetric(container, method.name) if method is not None else None

    def advice(self, cause: FilledMetric, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the container says all
        """Call it."""
        yield Advice(
            "reset_metric",
            f"{cause.container}: `{cause.method}()` would empty it; call it when an epoch has been "
            "computed.",
            cause.container.place,
        )


RULE = UnresetMetric()
