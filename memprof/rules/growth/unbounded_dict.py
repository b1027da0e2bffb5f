"""unbounded-dict: a dict that is asked for a key before it is filled has no largest size."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from memprof.records import Holder
from memprof.reference_chain import LinkKind
from memprof.rules.case import Case, says
from memprof.rules.containers import (
    FilledContainer,
    filled_container,
    filled_registry,
    has_fixed_keys,
    is_cache,
)
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.idioms import last_name
from memprof.source_code.missed_removals import missed_removal
from memprof.source_code.program import Place, calls_in

__all__ = ["RULE"]

_WITH_FACTORY = "defaultdict"
_FAR_MORE = 8
"""Times that something came, for each entry at a search: that may be made when a few have come."""


@dataclass(frozen=True, slots=True, eq=False)
class Cache(Cause):
    """The container, and whether it is a class's own attribute."""

    container: FilledContainer
    of_class: bool


@dataclass(frozen=True, slots=True, eq=False)
class DefaultEntries(Cause):
    """A ``defaultdict``, the statement that reads it by ever new keys, and how that is written."""

    holder: Holder
    place: Place
    read: ast.Subscript


class UnboundedDict(GrowthRule[Cache | DefaultEntries]):
    """`if length not in self.tables: self.tables[length] = …`, for ever new lengths."""

    name = "unbounded-dict"
    summary = "a cache has an entry for every new key, and no largest size"
    fixes = ("bound_cache", "clear_container")
    precedes = ("kept-graph",)

    def match(self, case: Case) -> Cache | DefaultEntries | None:
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
        return _default_entries(case)

    def advice(self, cause: Cache | DefaultEntries, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the container says all
        """Take out what is put in, where the program means to; else give it a largest size."""
        if isinstance(cause, DefaultEntries):
            name, key = ast.unparse(cause.read.value), ast.unparse(cause.read.slice)
            yield Advice(
                "bound_cache",
                f"{says(cause.holder)}: to read `{ast.unparse(cause.read)}` makes an entry where "
                f"there is none, and keeps it. `{name}.get({key})` makes none; or give it a "
                "largest size.",
                cause.place,
            )
            return
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


def _default_entries(case: Case) -> DefaultEntries | None:
    """What the factory of a ``defaultdict`` made as a statement read it."""
    for holder in case.finding.holders[:1]:
        kinds = [link.type_name if link.kind == LinkKind.ITEM else "" for link in holder.links]
        at = kinds.index(_WITH_FACTORY) if _WITH_FACTORY in kinds else 0
        name = holder.links[at - 1].name if at else ""
        if not name or any(kinds[at + 1 :]):  # what grows in an entry is no new one
            continue
        if 0 <= _FAR_MORE * holder.links[at].length < case.finding.growth.times:
            continue  # nor where far fewer entries were there than came
        for (factory, _), (_, place) in pairwise(case.frames):
            if calls_in(place.statement, factory.name.rpartition(".")[2]):
                continue  # by the statement itself, which hands on what is made there
            for node in _own_nodes(place.statement):
                if not isinstance(node, ast.Subscript) or not isinstance(node.ctx, ast.Load):
                    continue
                if last_name(ast.unparse(node.value)) == name:
                    return DefaultEntries(holder, place, node)
    return None


def _own_nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """The nodes of a statement itself, none of those that stand in its body."""
    for part in ast.iter_child_nodes(statement):
        if isinstance(part, ast.expr):
            yield from ast.walk(part)


RULE = UnboundedDict()
