"""unread-field: each item of a container keeps something that nothing reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from memprof.rules.case import Case
from memprof.rules.containers import filled_container
from memprof.rules.rule import EVERY_OTHER, Advice, Cause, GrowthRule
from memprof.rules.unread_fields import UnreadField, unread_field

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
        """An attribute of items that the program's source only ever sets."""
        container = filled_container(case)
        field = unread_field(container.holder, case.everywhere) if container is not None else None
        if field is None or field.items < (_FEWEST if field.is_of_results else _FEWEST_ITEMS):
            return None
        if field.is_of_results and not field.read:
            place = container.place if container is not None else field.place
            field = replace(field, place=place, line=place.line)
        return Unread(field)

    def advice(self, cause: Unread, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the cause says all
        """Leave it out."""
        yield cause.field.advice


RULE = UnreadFieldOfItems()
