"""unreset-metric: an object collects values, and its method that empties it is not called."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from memprof.reference_chain import Link, largest_container
from memprof.rules.case import Case
from memprof.rules.containers import FilledContainer, filled_container
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.idioms import emptied_by, last_name
from memprof.source_code.opposite_methods import opposite, parents_of
from memprof.source_code.program import FUNCTIONS, Place, Program, calls_in

__all__ = ["RULE"]

_PROPERTIES = frozenset(("cached_property", "property"))


@dataclass(frozen=True, slots=True, eq=False)
class FilledMetric(Cause):
    """The container, and the method of its class that empties it."""

    container: FilledContainer
    method: str
    computing: Place | None = None
    """Where the program has the object compute something of what it collected."""


class UnresetMetric(GrowthRule[FilledMetric]):
    """`self.values.append(…)` in `update()`, and a `reset()` beside it."""

    name = "unreset-metric"
    summary = "a metric collects values and is never reset"
    fixes = ("reset_metric",)
    yields_to = ("unbounded-dict", "kept-graph", "registered-callback")

    def match(self, case: Case) -> FilledMetric | None:
        """A container whose class has a method that empties it, or inherits one of a library."""
        container = filled_container(case)
        if container is None:
            return None
        own = emptied_by(container.place, last_name(container.filling.container))
        method = own.name if own is not None else _inherited(container, case)
        return FilledMetric(container, method, _computing(container, case)) if method else None

    def advice(self, cause: FilledMetric, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the container says all
        """Call it, where there is something computed of it."""
        yield Advice(
            "reset_metric",
            f"{cause.container}: `{cause.method}()` would empty it; call it when an epoch has been "
            "computed.",
            cause.computing or cause.container.place,
        )


def _inherited(container: FilledContainer, case: Case) -> str:
    """The opposite of the method that fills the container, where a library's class has it.

    That empties what the class has told the library of: ``self.add_state("values", default=[])``.
    Empty where there is none, or the program calls it.
    """
    place, name = container.place, last_name(container.filling.container)
    at = largest_container(container.holder.links)
    if not at or place.class_ is None or place.function is None:
        return ""
    release = opposite(place.function.name, container.holder.links[at - 1].releases)
    classes = list(parents_of(place.program, place.class_.name).values())
    methods = [node for one in classes for node in one.body if isinstance(node, FUNCTIONS)]
    if not release or release in {method.name for method in methods}:
        return ""
    is_state = any(_declares(method, name) for method in methods if method.name == "__init__")
    return release if is_state and not _is_called(release, container, case) else ""


def _declares(method: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> bool:
    """Whether a method hands over the name of an attribute, and does not set it itself."""
    nodes = list(ast.walk(method))
    own = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return name not in own and any(
        isinstance(node, ast.Constant) and node.value == name for node in nodes
    )


def _is_called(method: str, container: FilledContainer, case: Case) -> bool:
    """Whether the program calls the method of the object, of what has it, or of any variable."""
    names = {part for link in container.holder.links for part in link.name.split(".")}
    return any(
        isinstance(receiver, ast.Name) or last_name(ast.unparse(receiver)) in names
        for _, receiver, call in _method_calls(case)
        if call.attr == method and ast.unparse(receiver) not in ("self", "cls")
    )


def _computing(container: FilledContainer, case: Case) -> Place | None:
    """The call, by the object's name, of a method that reads what was collected; or its property.

    Of a library's object that has it in a part of its own, that object's method of the name.
    """
    place, name = container.place, last_name(container.filling.container)
    at = largest_container(container.holder.links)
    if not at or place.class_ is None:
        return None
    links = container.holder.links[:at]
    parts = [part for link in links for part in link.name.split(".") if part]
    if len(parts) < 2 or parts[-1] != name:
        return None
    reading = {
        node.name: node
        for node in place.class_.body
        if isinstance(node, FUNCTIONS) and node is not place.function and _reads(node, name)
    }
    properties = {name for name, node in reading.items() if _is_property(node)}
    for owner in dict.fromkeys((parts[-2], _outer_owner(links, case))):
        for program, receiver, call in _method_calls(case):
            if call.attr in reading and last_name(ast.unparse(receiver)) == owner:
                return program.place(call)
        for program in case.programs:
            for node in program.nodes:
                if _reads_property(node, properties, owner):
                    return program.place(node)
    return None


def _reads_property(node: ast.AST, names: Collection[str], owner: str) -> bool:
    """``metric.value`` of an object by its name."""
    is_read = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    return is_read and node.attr in names and last_name(ast.unparse(node.value)) == owner  # type: ignore[attr-defined]


def _outer_owner(links: Sequence[Link], case: Case) -> str:
    """The name of the library's object in which the one that collects is a part; else empty."""
    own = {class_.name for program in case.programs for class_ in program.classes()}
    is_part = len(links) > 1 and "." in links[-1].name
    if not is_part or links[-1].type_name.rpartition(".")[2] in own:
        return ""
    return last_name(links[-2].name)


def _is_property(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    names = {last_name(ast.unparse(one)) for one in method.decorator_list}
    return bool(names & _PROPERTIES)


def _reads(method: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> bool:
    """Whether a method hands an attribute of its object on, or goes through it."""
    taken = {
        id(node.func.value)
        for node in ast.walk(method)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    return any(
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Load)
        and ast.unparse(node) == f"self.{name}"
        and id(node) not in taken
        for node in ast.walk(method)
    )


def _method_calls(case: Case) -> Iterator[tuple[Program, ast.expr, ast.Attribute]]:
    """The calls of methods in the program's own files: in which, on what, and the method."""
    for program in case.programs:
        for call in calls_in(program.tree):
            if isinstance(call.func, ast.Attribute):
                yield program, call.func.value, call.func


RULE = UnresetMetric()
