"""What the items of a container have and nothing in the program reads, by a chain to it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from memprof.records import Holder
from memprof.reference_chain import Link, LinkKind, is_field, largest_container
from memprof.rules.rule import Advice
from memprof.source_code.entries_read import is_entry_unread
from memprof.source_code.program import Place, Program, bound_names
from memprof.source_code.unread_fields import (
    attributes_of_entry,
    entry_given_at,
    field_given_at,
    is_field_read,
    is_own_class,
    keys_of_attribute,
)
from memprof.source_code.unread_positions import given_at_position, is_position_unread

__all__ = [
    "UnreadField",
    "generated_part",
    "unread_entry",
    "unread_field",
    "unread_field_of_made",
    "unread_key",
]

_GENERATED = "generate"
"""The function whose results an `UnreadField` is of, as its owner."""
_DICTS = "dict"
"""The same of entries of plain dicts."""
_TUPLES = "tuple"
"""The same of items of tuples."""
_SHOWN = {"cache": "past_key_values"}
"""Attributes of such results by the names that programs know them by."""


@dataclass(frozen=True, slots=True, eq=False)
class UnreadField:
    """An attribute of a container's items, and the statement that gives it to them."""

    name: str
    owner: str
    """The class of the items, or the key of the entry that has the attribute."""
    items: int
    place: Place
    line: int
    read: tuple[str, ...] = ()
    """Of an entry what is read instead."""
    is_of_attribute: bool = False
    """It is the entry of one dict, which an attribute has, and no container's."""

    @property
    def is_of_results(self) -> bool:
        """Whether it is of entries of dicts or of results of `generate`, and of no own class."""
        return bool(self.read) or self.owner == _GENERATED

    @property
    def advice(self) -> Advice:
        """Leave it out."""
        if self.is_of_attribute:
            texts = " and ".join(f"`{one}`" for one in self.read)
            why = (
                f"Of `{self.owner}` only {texts} {'is' if len(self.read) == 1 else 'are'} read, "
                f"and its `{self.name}` is kept as well: keep what is read."
            )
            return Advice("del_ref", why, self.place, line=self.line)
        if self.read:
            texts = " and ".join(f"`{self.owner}.{one}`" for one in self.read)
            why = (
                f"Of what {self.items} items keep as `{self.owner}` only {texts} "
                f"{'is' if len(self.read) == 1 else 'are'} read, and its `{self.name}` is kept as "
                "well: keep what is read."
            )
            return Advice("del_ref", why, self.place, line=self.line)
        if self.owner == _GENERATED:
            why = (
                f"Nothing reads the `{self.name}` of what `generate` returned, which {self.items} "
                "items keep: keep what is read of it (`sequences`, say), and ask for no more."
            )
            return Advice("del_ref", why, self.place, line=self.line)
        if self.owner == _TUPLES:
            why = (
                f"Nothing reads the `{self.name}` that each of {self.items} tuples keeps: leave it "
                "out, or keep of it what is read."
            )
            return Advice("del_ref", why, self.place, line=self.line)
        if self.owner == _DICTS:
            why = (
                f"Nothing reads the `{self.name}` that each of {self.items} dicts keeps: leave it "
                "out, or keep of it what is read."
            )
            return Advice("del_ref", why, self.place, line=self.line)
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
        generated = _of_generated(holder, link.length, holder.links[at + 1 :], programs)
        if generated is not None:
            return generated
        field = _of_items(link.length, holder.links[at + 1 :], programs)
        if field is not None:
            return field
    return None


def unread_entry(
    holder: Holder, place: Place, container: ast.expr, programs: Sequence[Program]
) -> UnreadField | None:
    """The entry by which dicts in a container keep what is held, if nothing ever reads that.

    The container as an expression is known by at a place.
    """
    at = largest_container(holder.links)
    below = holder.links[at + 1 :] if at is not None else ()
    if at is None or not below or not is_field(below[0]) or below[0].type_name != _DICTS:
        return None
    key = below[0].name.strip("'\"")
    given = entry_given_at(programs, key)
    if given is None or not is_entry_unread(place, container, key, programs):
        return None
    return UnreadField(key, _DICTS, holder.links[at].length, *given)


def unread_key(holder: Holder, programs: Sequence[Program]) -> UnreadField | None:
    """The entry of a dict in an attribute that keeps what is held, if others alone are read of it.

    ``self.best = deepcopy(state)``, and what is read is ``self.best["model"]``.
    """
    for link, below in pairwise(holder.links):
        if not _is_of_program(link) or not is_field(below):
            continue
        key, owner = below.name.strip("'\""), link.type_name.rpartition(".")[2]
        read = keys_of_attribute(tuple(programs), link.name)
        program = next((one for one in programs if one.filename == link.filename), None)
        place = program.at(link.line) if program is not None else None
        if not read or key in read or place is None or not is_own_class(programs, owner):
            continue
        texts = tuple(f"{link.name}[{one!r}]" for one in sorted(read))
        owner_name = f"{owner}.{link.name}"
        return UnreadField(key, owner_name, 1, place, link.line, texts, is_of_attribute=True)
    return None


def unread_field_of_made(
    holder: Holder, made: Place, programs: Sequence[Program]
) -> UnreadField | None:
    """The attribute or entry that nothing reads, of the items of what a statement is making.

    Of what the statement binds to one name.
    """
    names = bound_names(made.statement)
    if len(names) != 1:
        return None
    return (
        unread_field(holder, programs)
        or unread_entry(holder, made, names[0], programs)
        or _unread_position(holder, made, names[0])
    )


def _unread_position(holder: Holder, made: Place, name: ast.expr) -> UnreadField | None:
    """The same of tuples: ``for _, score in results``, where each has a model besides."""
    at = largest_container(holder.links)
    below = holder.links[at + 1 :] if at is not None else ()
    if at is None or not isinstance(name, ast.Name) or not below:
        return None
    if below[0].type_name != _TUPLES or not below[0].name.isdigit():
        return None
    position, length = int(below[0].name), below[0].length
    given = given_at_position(made, position, length) if position < length else None
    if given is None or not is_position_unread(made, name.id, position, length):
        return None
    value, place = given
    return UnreadField(ast.unparse(value), _TUPLES, holder.links[at].length, place, value.lineno)


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
        read = attributes_of_entry(programs, key)
        given = entry_given_at(programs, key)
        if not read or name in read or given is None:
            return None
        return UnreadField(name, f"['{key}']", items, *given, tuple(sorted(read)))
    return None


def _of_generated(
    holder: Holder, items: int, below: Sequence[Link], programs: Sequence[Program]
) -> UnreadField | None:
    """What `generate` of transformers returned, ``logits`` say, of which that is read nowhere.

    No function of the library takes such an object as a whole.
    """
    if not below or below[0].kind != LinkKind.ATTRIBUTE or not _is_generated(below[0].type_name):
        return None
    name = _SHOWN.get(below[0].name, below[0].name)
    if any(is_field_read(programs, one) for one in {name, below[0].name}):
        return None
    program = next((one for one in programs if one.filename == holder.filename), None)
    place = program.at(holder.line) if program is not None else None
    return UnreadField(name, _GENERATED, items, place, holder.line) if place is not None else None


def generated_part(holder: Holder) -> str:
    """What a container's items have of what `generate` returned: ``scores``; empty for others."""
    for at, link in enumerate(holder.links[1:]):
        above = holder.links[at]
        is_part = link.kind == LinkKind.ATTRIBUTE and _is_generated(link.type_name)
        if is_part and above.kind == LinkKind.ITEM:
            return _SHOWN.get(link.name, link.name)
    return ""


def _is_generated(type_name: str) -> bool:
    """``GenerateDecoderOnlyOutput``, ``GenerateBeamEncoderDecoderOutput``."""
    name = type_name.rpartition(".")[2]
    return name.startswith("Generate") and name.endswith("Output")


def _is_of_program(link: Link) -> bool:
    """Whether a link is from an object to an attribute that a class of the program's own has."""
    return link.kind == LinkKind.ATTRIBUTE and bool(link.filename)
