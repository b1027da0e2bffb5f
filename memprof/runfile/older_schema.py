"""Records of older run files in the words of the present schema.

Before 1.3 a link's name was text for a person, and held what has fields of its own since. This is
the one place that reads such text; no file that is written today has it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from memprof.records import Finding, Holder
from memprof.reference_chain import Link, LinkKind, Unowned

__all__ = ["upgraded"]

_STRUCTURED = (1, 3)
"""The first version whose links have fields for all that they say."""
_REPEATED = re.compile(r"(.+) x(\d{1,9})")
_LEFT_OUT = re.compile(r"\.\.\. (\d{1,9}) more \.\.\.")
_PART = re.compile(r"(\d{1,18}) of (\d{1,18}) bytes")
_UNOWNED = re.compile(r"no Python owner found(?: \(C\+\+ holds the (.+?)\))?(?:: (.*))?")
_CUT_OFF = re.compile(r"the search ended before it found an owner(?:: (.*))?")
_AUTOCAST = re.compile(r"autocast is on \((\w+)\)")
_POOL = re.compile(r"it lies in the [^()]{1,40}\((\d{1,9}), (\d{1,9})\)")
_PARAMETERS = ("param_groups", "state (key)")


def upgraded(finding: Finding, schema: tuple[int, int]) -> Finding:
    """Return the finding of a file of version ``schema`` as the present one would hold it."""
    if schema >= _STRUCTURED or not finding.holders:
        return finding
    holders = [_holder(one) for one in finding.holders]
    return msgspec.structs.replace(finding, holders=holders)


def _holder(holder: Holder) -> Holder:
    return msgspec.structs.replace(holder, links=[_link(one) for one in holder.links])


def _link(link: Link) -> Link:
    upgrade = _UPGRADES.get(link.kind)
    return upgrade(link) if upgrade is not None else link


def _item(link: Link) -> Link:
    """A dict had string keys where the name of its item was quoted."""
    return msgspec.structs.replace(link, is_record=link.name.startswith("'"))


def _graph(link: Link) -> Link:
    nodes = tuple(_node(text) for text in link.name.split(" -> ")) if link.name else ()
    return msgspec.structs.replace(link, name="", nodes=nodes)


def _node(text: str) -> tuple[str, int]:
    left_out = _LEFT_OUT.fullmatch(text)
    if left_out is not None:
        return "", int(left_out[1])
    repeated = _REPEATED.fullmatch(text)
    return (repeated[1], int(repeated[2])) if repeated is not None else (text, 1)


def _view(link: Link) -> Link:
    part = _PART.fullmatch(link.name)
    if part is None:
        return link
    return msgspec.structs.replace(
        link, name="", shown_bytes=int(part[1]), storage_bytes=int(part[2])
    )


def _state(link: Link) -> Link:
    return msgspec.structs.replace(link, is_parameter=link.name.startswith(_PARAMETERS))


def _without_facts(link: Link) -> Link:
    memory, cut_off = _UNOWNED.fullmatch(link.name), _CUT_OFF.fullmatch(link.name)
    if cut_off is not None:
        return msgspec.structs.replace(link, name="", unowned=_memory("", cut_off[1], cut_off=True))
    if memory is not None:
        return msgspec.structs.replace(link, name="", unowned=_memory(memory[1], memory[2]))
    return link


def _memory(owner: str | None, rest: str | None, *, cut_off: bool = False) -> Unowned:
    rest = rest or ""
    autocast, pool = _AUTOCAST.search(rest), _POOL.search(rest)
    return Unowned(
        cut_off=cut_off,
        owner=owner or "",
        autocast=autocast[1] if autocast is not None else "",
        workspace="size of a cuBLAS workspace" in rest,
        pool=(int(pool[1]), int(pool[2])) if pool is not None else (0, 0),
        side_stream="on a side stream" in rest,
    )


_UPGRADES: dict[LinkKind, Callable[[Link], Link]] = {
    LinkKind.ITEM: _item,
    LinkKind.AUTOGRAD_NODE: _graph,
    LinkKind.BASE: _view,
    LinkKind.OPTIMIZER_STATE: _state,
    LinkKind.UNKNOWN: _without_facts,
}
