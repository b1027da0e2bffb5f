"""linked-objects: every object keeps the one before it, and with the last all of them are there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from memprof.records import Holder
from memprof.reference_chain import CYCLES, LinkKind, linked_at
from memprof.rules.case import Case
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.idioms import last_name
from memprof.source_code.program import Place, bound_names

__all__ = ["RULE"]

_NAMED_KINDS = frozenset({LinkKind.ATTRIBUTE, LinkKind.MODULE_ATTRIBUTE, LinkKind.CLOSURE})


@dataclass(frozen=True, slots=True, eq=False)
class Chain(Cause):
    """How one object refers to the next, and the statement that makes it do so."""

    place: Place | None
    name: str
    """As the statement writes it: ``self.previous``; else the attribute or the key."""
    type_name: str
    is_attribute: bool


class LinkedObjects(GrowthRule[Chain]):
    """`Snapshot(model, previous=last)`, of which a history of four keeps the last ones only."""

    name = "linked-objects"
    summary = "every object keeps the one that was made before it"
    fixes = ("del_ref",)
    precedes = (
        *("growing-container", "unbounded-dict", "assigned-history", "kept-graph", "small-view"),
        *("uncalled-release", "collected-models", "registered-callback", "carried-state"),
        *("generation-cache", "class-registry", "grown-by-concatenation"),
    )

    def match(self, case: Case) -> Chain | None:
        """A chain of references in which objects follow one another by the same name."""
        if case.links & CYCLES:
            return None
        for holder in case.finding.holders:
            at = linked_at(holder.links)
            if at is not None:
                return _chain(case, holder, at)
        return None

    def advice(self, cause: Chain, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the chain says all
        """Keep what is read of the object before, or cut the chain."""
        name = f"`{cause.name}`" if cause.name else "one reference"
        cut = f" (`{cause.name} = None`)" if cause.is_attribute else ""
        yield Advice(
            "del_ref",
            f"Each `{cause.type_name}` keeps the one before it by {name}, and the last keeps them "
            f"all: keep what is read of it, such as a number, or cut it off when the next one is "
            f"made{cut}.",
            cause.place,
        )


def _chain(case: Case, holder: Holder, at: int) -> Chain:
    with_names = (link for link in holder.links[at:] if link.kind in _NAMED_KINDS)
    link = next(with_names, holder.links[at])
    place = case.place_at(link.filename, link.line)
    targets = bound_names(place.statement) if place is not None else []
    texts = [ast.unparse(target) for target in targets]
    name = next((text for text in texts if last_name(text) == link.name), link.name)
    return Chain(
        place or case.place_of(holder),
        name,
        link.type_name,
        is_attribute=link.kind in _NAMED_KINDS and link.kind != LinkKind.CLOSURE,
    )


RULE = LinkedObjects()
