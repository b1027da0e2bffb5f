"""The container that has what a running function's variable has, as other searches found it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from memprof.records import Holder
from memprof.reference_chain import Link, LinkKind

__all__ = ["by_containers"]

_FEWEST_ITEMS = 2
"""Of a container that more objects than the variable's are in."""


def by_containers(held: Mapping[int, Sequence[Holder]]) -> dict[int, tuple[Holder, ...]]:
    """Holders by stack, with chains that begin at a container where they began at a variable.

    ``out = model.generate(…)`` and ``records.append({"output": out})``: one search finds a tensor
    by ``records[3]['output'].sequences`` and by ``out.sequences``; another has time to find
    ``out.scores`` alone. Both are of ``records``, which keeps them when ``out`` is bound anew.
    """
    ways = dict(_ways(held))
    if not ways:
        return {stack: tuple(holders) for stack, holders in held.items()}
    return {
        stack: tuple(_by_container(holder, holders, ways) for holder in holders)
        for stack, holders in held.items()
    }


def _ways(held: Mapping[int, Sequence[Holder]]) -> Iterator[tuple[tuple[str, str], Holder]]:
    """By a variable and its function, a holder whose chain ends where the container has it."""
    for holders in held.values():
        for variable in holders:
            if not _is_of_variable(variable):
                continue
            below = variable.links[1:]
            for other in holders:
                above = other.links[: -len(below)]
                is_container = any(
                    one.kind == LinkKind.ITEM and one.length >= _FEWEST_ITEMS for one in above
                )
                if is_container and _names(other.links[-len(below) :]) == _names(below):
                    yield _key(variable), msgspec.structs.replace(other, links=above)


def _is_of_variable(holder: Holder) -> bool:
    """Whether a chain begins at a function's variable and goes on by attributes and fields."""
    links = holder.links
    return len(links) > 1 and links[0].kind == LinkKind.LOCAL


def _key(holder: Holder) -> tuple[str, str]:
    return holder.links[0].name, holder.links[0].type_name


def _names(links: Sequence[Link]) -> list[tuple[LinkKind, str]]:
    """What they are, whichever item of a list it is."""
    return [(one.kind, "" if one.name.isdigit() else one.name) for one in links]


def _by_container(
    holder: Holder, holders: Sequence[Holder], ways: Mapping[tuple[str, str], Holder]
) -> Holder:
    way = ways.get(_key(holder)) if _is_of_variable(holder) else None
    if way is None or any(one.links[0] == way.links[0] for one in holders):
        return holder
    return msgspec.structs.replace(way, links=[*way.links, *holder.links[1:]])
