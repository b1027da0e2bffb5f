"""registered-callback: a container of callbacks keeps what their methods and functions know."""

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
    """The container of callbacks, and where one comes from."""

    container: FilledContainer
    origin: Place
    has_methods: bool
    """They are bound methods, and no functions with variables of their own."""


class RegisteredCallback(GrowthRule[Callbacks]):
    """`bus.listeners.append(self.on_step)` for ever new objects; `trainer.on(END, summary)`."""

    name = "registered-callback"
    summary = "registered callbacks keep what they belong to or close over"
    fixes = ("weakref", "remove_hook")
    yields_to = ("unbounded-dict", "kept-graph")

    def match(self, case: Case) -> Callbacks | None:
        """A container whose items are bound methods, or functions that close over something."""
        container = filled_container(case)
        if container is None:
            return None
        items = below_item(container.holder)[:1]
        kinds = {link.kind for link in items}
        if not kinds & {LinkKind.BOUND_METHOD, LinkKind.CLOSURE, LinkKind.PARTIAL}:
            return None
        method = next((link.type_name for link in items if link.kind == LinkKind.BOUND_METHOD), "")
        source = handed_over(case, container.place, container.filling.values[-1], method)
        origin = source[0] if source is not None else container.place
        return Callbacks(container, origin, LinkKind.BOUND_METHOD in kinds)

    def advice(self, cause: Callbacks, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the container says all
        """Register methods weakly, functions once; or take them out."""
        if not cause.has_methods:
            yield Advice(
                "remove_hook",
                f"{cause.container}, and a function keeps all that it closes over: register it "
                "once, outside of what is run again and again, or take it out when it has run.",
                cause.origin,
            )
            return
        yield Advice(
            "weakref",
            f"{cause.container}, and a bound method keeps its object: register it weakly "
            "(`weakref.WeakMethod`), or take it out when the object is done with.",
            cause.origin,
        )


RULE = RegisteredCallback()
