"""unbounded-dict: a dict that is asked for a key before it is filled has no largest size."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from memprof.rules.case import Case, says
from memprof.rules.containers import (
    FilledContainer,
    filled_container,
    filled_registry,
    has_fixed_keys,
    is_cache,
)
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.missed_removals import missed_removal

__all__ = ["RULE"]


@dataclass(frozen=True, slots=True, eq=False)
class Cache(Cause):
    """The container, and whether it is a class's own attribute."""

    container: FilledContainer
    of_class: bool


class UnboundedDict(GrowthRule[Cache]):
    """`if length not in self.tables: self.tables[length] = …`, for ever new lengths."""

    name = "unbounded-dict"
    summary = "a cache has an entry for every new key, and no largest size"
    fixes = ("bound_cache", "clear_container")
    precedes = ("kept-graph",)

    def match(self, case: Case) -> Cache | None:
        """A container that is filled by key where its function asks for the key.

        What is made anew, larger, is no new entry: it grows inside an entry that is there.
        """
        if case.finding.growth.is_replaced:
            return None
        for container, of_class in (
            (filled_registry(case), True),
            (filled_container(case), False),
        ):
            if container is not None and is_cache(container) and not has_fixed_keys(container):
                return Cache(container, of_class)
        return None

    def advice(self, cause: Cache, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the container says all
        """Take out what is put in, where the program means to; else give it a largest size."""
        container = cause.container
        missed = missed_removal(container.place, container.filling.container)
        if missed is not None:
            place, key = missed
            yield Advice(
                "clear_container",
                f"{container}: `{ast.unparse(place.statement)}` takes nothing out, as entries are "
                f"put in under `{key}`: take out that key.",
                place,
            )
        what = says(container.holder) if cause.of_class else str(container)
        yield Advice(
            "bound_cache",
            f"{what}: it is a cache without a largest size, with an entry for every new key.",
            container.place,
        )


RULE = UnboundedDict()
