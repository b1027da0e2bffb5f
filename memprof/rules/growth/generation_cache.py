"""generation-cache: a module's cache of keys and values keeps those of earlier prompts."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from memprof.rules.carried_caches import carried_by_loop
from memprof.rules.case import Case
from memprof.rules.containers import filled_container
from memprof.rules.graph_lines import on_the_way
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.idioms import growing, grown_by_concatenation
from memprof.source_code.parts_read import overwritten
from memprof.source_code.program import Place, arguments, bound_names, calls_in
from memprof.source_code.verbs import JOINING

__all__ = ["RULE"]


@dataclass(frozen=True, slots=True, eq=False)
class GenerationCache(Cause):
    """The statement that puts a call's keys or values to the earlier ones."""

    place: Place
    name: str
    """As written: ``self.keys``."""
    module: str
    """The path of the module that ran."""


class GenerationCaches(GrowthRule[GenerationCache]):
    """`self.keys = torch.cat([self.keys, k], 1)` in attention, and a loop over prompts."""

    name = "generation-cache"
    summary = "a cache of keys and values keeps those of earlier prompts"
    fixes = ("clear_container", "bound_cache")
    yields_to = ("unreset-metric",)
    precedes = ("grown-by-concatenation",)

    def match(self, case: Case) -> GenerationCache | None:
        """A module that joins what it computes with all it computed before, and goes on with that.

        That is what tells a cache from predictions that a metric collects: those are not read by
        the call that adds to them. With a graph it is a state that training carries along.
        """
        if not case.finding.module or case.graph or _has_one_each(case):
            return None
        for place in on_the_way(case):
            if place.class_ is None or carried_by_loop(case, place):
                continue  # the caller begins each with an empty one
            name = grown_by_concatenation(place)
            if name and (_is_read_below(place, name) or _is_handed_over(place)):
                return GenerationCache(place, name, case.finding.module)
            filling = growing(place)
            if filling is not None and _is_joined(place, filling.container):
                return GenerationCache(place, filling.container, case.finding.module)
        return None

    def advice(self, cause: GenerationCache, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the statement says all
        """Begin each prompt with an empty cache; or keep no more than a window of it."""
        why = f"Every call of `{cause.module}` adds to `{cause.name}` and computes with all of it"
        yield Advice("clear_container", f"{why}: begin each prompt with an empty one.", cause.place)
        yield Advice(
            "bound_cache",
            f"{why}: keep a window of so many tokens, where the model allows that.",
            cause.place,
            otherwise=True,
        )


def _has_one_each(case: Case) -> bool:
    """Whether a table has an entry for every prompt: there are ever more, and none grows."""
    container = None if case.finding.growth.is_replaced else filled_container(case)
    return container is not None and container.filling.keyed


def _is_read_below(place: Place, name: str) -> bool:
    """Whether the function goes on to read a name after the statement that binds it again.

    To overwrite a part of it is no reading.
    """
    written = overwritten(place.scope)
    reads = (node for node in _reads(place.scope, name) if id(node) not in written)
    return any(node.lineno > place.line for node in reads)


def _is_handed_over(place: Place) -> bool:
    """Whether the function goes on to hand what a statement binds to a call: it computes with it.

    ``joined = torch.cat((past, new))``, and then ``self.conv(joined)``.
    """
    names = {one.id for one in bound_names(place.statement) if isinstance(one, ast.Name)}
    below = (call for call in calls_in(place.scope) if call.lineno > place.line)
    return any(
        isinstance(argument, ast.Name) and argument.id in names
        for call in below
        for argument in arguments(call)
    )


def _is_joined(place: Place, container: str) -> bool:
    """Whether the function joins a container's items into one tensor."""
    return any(any(_reads(call, container)) for call in calls_in(place.scope, *JOINING))


def _reads(tree: ast.AST, name: str) -> Iterator[ast.expr]:
    """Where a name, an attribute or an item of that text is read."""
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            continue
        if isinstance(node.ctx, ast.Load) and ast.unparse(node) == name:
            yield node


RULE = GenerationCaches()
