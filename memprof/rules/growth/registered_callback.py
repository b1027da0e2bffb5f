"""registered-callback: a container of callbacks keeps what their methods and functions know."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memprof.reference_chain import Link, LinkKind
from memprof.rules.case import Case
from memprof.rules.containers import FilledContainer, below_item, filled_container
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.rules.source_facts import handed_over
from memprof.source_code.idioms import last_name
from memprof.source_code.program import FUNCTIONS, Place, called_name

__all__ = ["RULE"]


@dataclass(frozen=True, slots=True, eq=False)
class Callbacks(Cause):
    """The container of callbacks, and where one comes from."""

    container: FilledContainer
    origin: Place
    has_methods: bool
    """They are bound methods, and no functions with variables of their own."""
    line: int = 0
    """Of the decorator that registers one; 0 without."""


class RegisteredCallback(GrowthRule[Callbacks]):
    """`bus.listeners.append(self.on_step)` for ever new objects; `trainer.on(END, summary)`."""

    name = "registered-callback"
    summary = "registered callbacks keep what they belong to or close over"
    fixes = ("weakref", "remove_hook")
    yields_to = ("unbounded-dict", "kept-graph", "kept-method")

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
        line = 0
        closures = [link for link in items if link.kind == LinkKind.CLOSURE]
        for place, decorator in _decorated(case, closures, container.place):
            origin, line = place, decorator.lineno
        return Callbacks(container, origin, LinkKind.BOUND_METHOD in kinds, line)

    def advice(self, cause: Callbacks, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the container says all
        """Register methods weakly, functions once; or take them out."""
        if not cause.has_methods:
            yield Advice(
                "remove_hook",
                f"{cause.container}, and a function keeps all that it closes over: register it "
                "once, outside of what is run again and again, or take it out when it has run.",
                cause.origin,
                line=cause.line,
            )
            return
        yield Advice(
            "weakref",
            f"{cause.container}, and a bound method keeps its object: register it weakly "
            "(`weakref.WeakMethod`), or take it out when the object is done with.",
            cause.origin,
        )


def _decorated(
    case: Case, closures: Sequence[Link], filled_at: Place
) -> Iterator[tuple[Place, ast.expr]]:
    """Decorators that hand a function over to those around a statement: ``@bus.on("end")``."""
    takers = {one.name for one in filled_at.around if isinstance(one, FUNCTIONS)}
    names = {link.type_name.rpartition(".")[2] for link in closures}
    for program in case.programs:
        for function in (one for name in names for one in program.functions(name)):
            place = program.place(function)
            for decorator in function.decorator_list if place is not None else ():
                called = called_name(decorator) or last_name(ast.unparse(decorator))
                if place is not None and called in takers:
                    yield place, decorator


RULE = RegisteredCallback()
