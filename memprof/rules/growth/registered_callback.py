"""registered-callback: a container of callbacks keeps the objects whose methods they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memprof.reference_chain import LinkKind
from memprof.rules.case import Case
from memprof.rules.containers import FilledContainer, below_item, filled_container
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.rules.source_facts import handed_over
from memprof.source_code.program import Place

__all__ = ["RULE"]


@dataclass(frozen=True, slots=True, eq=False)
class Callbacks(Cause):
    """The container of bound methods, and where one comes from."""

    container: FilledContainer
    origin: Place


class RegisteredCallback(GrowthRule[Callbacks]):
    """`bus.listeners.append(self.on_step)`: a bound method keeps its object."""

    name = "registered-callback"
    summary = "registered methods keep the objects that they belong to"
    fixes = ("weakref",)
    yields_to = ("unbounded-dict", "kept-graph")

    def match(self, case: Case) -> Callbacks | None:
        """A container whose items are bound methods."""
        container = filled_container(case)
        if container is None:
            return None
        items = below_item(container.holder)[:1]
        if not any(link.kind == LinkKind.BOUND_METHOD for link in items):
            return None
        source = handed_over(case, container.place, container.filling.values[-1])
        return Callbacks(container, source[0] if source is not None else container.place)

    def advice(self, cause: Callbacks, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the container says all
        """Register them weakly, or take them out."""
        yield Advice(
            "weakref",
            f"{cause.container}, and a bound method keeps its object: register it weakly "
            "(`weakref.WeakMethod`), or take it out when the object is done with.",
            cause.origin,
        )


RULE = RegisteredCallback()
