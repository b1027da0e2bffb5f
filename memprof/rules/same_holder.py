"""When the holders of two tensors are one thing: a list, a graph, a module, a cycle of one line."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import groupby

import msgspec

from memprof.records import Holder
from memprof.reference_chain import CYCLES, THROUGH_GRAPH, Link, LinkKind, largest_container, way

__all__ = ["holder_key", "owner_key"]

_INSIDE = THROUGH_GRAPH | {
    LinkKind.BASE,
    LinkKind.GRAD,
    LinkKind.OPTIMIZER_STATE,
    LinkKind.PARAMETER,
    LinkKind.BUFFER,
}
"""Links below the thing that a person would let go of."""
_ATTRIBUTES = frozenset({LinkKind.ATTRIBUTE, LinkKind.MODULE_ATTRIBUTE})


def holder_key(holder: Holder) -> tuple[Hashable, ...]:
    """What two tensors' holders have in common when one thing holds both.

    The names down to the container that grows, else down to where the graph, the module or the
    optimizer begins; for a cycle the line that makes it.
    """
    if holder.kind in CYCLES:
        place = (holder.filename, holder.line) if holder.line else ("", 0)
        return (holder.kind, place)
    links = way(_without_field(holder.links[: _depth(holder.links)]))
    return tuple(link for link, _ in groupby(links)) or (holder.kind, holder.filename, holder.line)


def owner_key(holder: Holder) -> tuple[Hashable, ...]:
    """What two tensors' holders have in common when one object has the containers of both.

    Empty where what holds it is in no field of an object.
    """
    links = holder.links[: _depth(holder.links)]
    return tuple(way(_in_owner(links))) if _is_in_field(links) else ()


def _without_field(links: Sequence[Link]) -> Sequence[Link]:
    """The chain without which field of a library's object it is, where that has a way out.

    A metric has its predictions and its targets in two lists, and empties both by one method.
    """
    if not _is_in_field(links) or links[-2].filename or not links[-2].releases:
        return links
    return _in_owner(links)


def _is_in_field(links: Sequence[Link]) -> bool:
    """Whether a chain ends in an item of a container that is in a field of an object."""
    return len(links) > 1 and links[-1].kind is LinkKind.ITEM and links[-2].kind in _ATTRIBUTES


def _in_owner(links: Sequence[Link]) -> Sequence[Link]:
    """The chain with the field's name left out of ``layers.0.lora_A``: to the object it is of."""
    field = links[-2]
    owner = msgspec.structs.replace(field, name=field.name.rpartition(".")[0])
    return [*links[:-2], owner, links[-1]]


def _depth(links: Sequence[Link]) -> int:
    """Links up to the largest container, or up to what lies inside the thing held."""
    container = largest_container(links)
    if container is not None:
        return container + 1
    inside = (at for at, link in enumerate(links) if link.kind in _INSIDE and at)
    return next(inside, len(links))
