"""What the items of a container have and nothing in the program reads, by a chain to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memprof.records import Holder
from memprof.reference_chain import Link, LinkKind, is_field
from memprof.rules.rule import Advice
from memprof.source_code.program import Place, Program
from memprof.source_code.unread_fields import (
    entry_given_at,
    field_given_at,
    is_field_read,
    is_own_class,
    is_part_of_entry,
)

__all__ = ["UnreadField", "unread_field"]


@dataclass(frozen=True, slots=True, eq=False)
class UnreadField:
    """An attribute of a container's items, and the statement that gives it to them."""

    name: str
    owner: str
    """The class of the items, or the key of the entry that has the attribute."""
    items: int
    place: Place
    line: int

    @property
    def advice(self) -> Advice:
        """Leave it out."""
        why = (
            f"Nothing reads the `{self.name}` of `{self.owner}`, which {self.items} items keep: "
            "leave it out, or keep of it what is read."
        )
        return Advice("del_ref", why, self.place, line=self.line)


def unread_field(holder: Holder, programs: Sequence[Program]) -> UnreadField | None:
    """The attribute by which items keep what is held, if the source of the program never reads it.

    Of items of the program's own classes, or of what items that are dicts have under one key.
    """
    for at, link in enumerate(holder.links):
        if link.kind != LinkKind.ITEM or is_field(link):
            continue
        field = _of_items(link.length, holder.links[at + 1 :], programs)
        if field is not None:
            return field
    return None


def _of_items(items: int, below: Sequence[Link], programs: Sequence[Program]) -> UnreadField | None:
    """The same of a container's items, by the links below it."""
    if below and _is_of_program(below[0]):
        name, owner = below[0].name, below[0].type_name.rpartition(".")[2]
        if is_field_read(programs, name) or not is_own_class(programs, owner):
            return None
        given = field_given_at(programs, name, owner)
        return UnreadField(name, owner, items, *given) if given is not None else None
    if len(below) > 1 and is_field(below[0]) and below[1].kind == LinkKind.ATTRIBUTE:
        key, name = below[0].name.strip("'"), below[1].name
        if is_field_read(programs, name) or not is_part_of_entry(programs, key):
            return None
        given = entry_given_at(programs, key)
        return UnreadField(name, f"['{key}']", items, *given) if given is not None else None
    return None


def _is_of_program(link: Link) -> bool:
    """Whether a link is from an object to an attribute that a class of the program's own has."""
    return link.kind == LinkKind.ATTRIBUTE and bool(link.filename)
