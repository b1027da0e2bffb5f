"""unread-field: each item of a container keeps something that nothing reads."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from memprof.rules.being_made import making_statement
from memprof.rules.case import Case
from memprof.rules.containers import FilledContainer, filled_container
from memprof.rules.rule import EVERY_OTHER, Advice, Cause, GrowthRule
from memprof.rules.unread_fields import (
    UnreadField,
    unread_entry,
    unread_field,
    unread_field_of_made,
)

__all__ = ["RULE"]

_FEWEST_ITEMS = 8
"""In a container, below which a chain of objects looks like one, …"""
_FEWEST = 2
"""… and dicts, each with what is read of it under the same key, or results of a library's."""


@dataclass(frozen=True, slots=True, eq=False)
class Unread(Cause):
    """The field, the class of the items, and the statement that gives it to them."""

    field: UnreadField


class UnreadFieldOfItems(GrowthRule[Unread]):
    """`Answer(tokens, raw=out)`: the tokens are read later, and `raw` never is."""

    name = "unread-field"
    summary = "each item of a container keeps something that nothing reads"
    fixes = ("del_ref",)
    yields_to = EVERY_OTHER
    precedes = ("growing-container",)

    def match(self, case: Case) -> Unread | None:
        """An attribute or an entry of items that the program's source only ever sets."""
        container = filled_container(case)
        field = _of_filled(container, case) if container is not None else _of_made(case)
        if field is None or field.items < (_FEWEST if field.is_of_results else _FEWEST_ITEMS):
            return None
        if field.is_of_results and not field.read:
            place = container.place if container is not None else field.place
            field = replace(field, place=place, line=place.line)
        return Unread(field)

    def advice(self, cause: Unread, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the cause says all
        """Leave it out."""
        yield cause.field.advice


def _of_filled(container: FilledContainer, case: Case) -> UnreadField | None:
    field = unread_field(container.holder, case.everywhere)
    if field is not None:
        return field
    named = ast.parse(container.filling.container, mode="eval").body
    return unread_entry(container.holder, container.place, named, case.everywhere)


def _of_made(case: Case) -> UnreadField | None:
    """The same of a container that a comprehension is making."""
    for holder in case.finding.holders[:1]:
        made = making_statement(holder, case.finding.stack)
        if made is not None:
            return unread_field_of_made(holder, made, case.everywhere)
    return None


RULE = UnreadFieldOfItems()
