"""What several looks at the same tensors tell together: which of their containers grows."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import msgspec

from memprof.records import Finding, Holder
from memprof.reference_chain import Link, LinkKind, is_field, largest_container, way
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.program import code_of
from memprof.trace import Frame

__all__ = ["grown", "holders_of"]


def holders_of(looks: Sequence[Finding]) -> tuple[Holder, ...]:
    """The holders of the last look, with the containers marked that became longer between two.

    Those whose containers have room for the tensors of all steps come first: of a ring and a list
    that are filled alike, the ring cannot be what keeps them.
    """
    last = looks[-1]
    holders = [_with_growth(one, looks[:-1]) for one in last.holders]
    births = last.details.get("births")
    if isinstance(births, int) and holders and 0 < _room(holders[0]) < births:
        holders.sort(key=lambda one: _room(one) < births)
    return tuple(holders)


def _with_growth(holder: Holder, earlier: Sequence[Finding]) -> Holder:
    """The holder, and the line that fills what grows of it."""
    same = [
        one
        for look in earlier
        for one in look.holders
        if len(one.links) == len(holder.links) and way(one.links) == way(holder.links)
    ]
    lengths = [link.length for link in holder.links]
    others = [one for one in same if [link.length for link in one.links] != lengths]
    if not others:
        return holder
    pairs = zip(holder.links, others[-1].links, strict=True)
    links = [grown(link) if 0 < before.length < link.length else link for link, before in pairs]
    at = largest_container(links)
    if at is None or not links[at].grows:
        return msgspec.structs.replace(holder, links=links)
    if at == largest_container(holder.links) and not is_field(holder.links[at]):
        return msgspec.structs.replace(holder, links=links)
    while at and links[at].kind == LinkKind.ITEM:
        at -= 1
    own_link = links[at]
    if not own_link.line or frame_kind(own_link.filename) is not FrameKind.USER:
        return msgspec.structs.replace(holder, links=links)
    return msgspec.structs.replace(
        holder,
        links=links,
        filename=own_link.filename,
        line=own_link.line,
        code=code_of(Frame("", own_link.filename, own_link.line)),
    )


def grown(link: Link) -> Link:
    """Mark a container as longer than before; a dict that grows is no record of fixed names."""
    return msgspec.structs.replace(link, grows=True, is_record=False)


def _room(holder: Holder) -> int:
    """How many places the containers of a chain have; 0 where it has no container."""
    lengths = [
        link.length
        for link in holder.links
        if link.kind == LinkKind.ITEM
        and link.length > 0
        and link.type_name != "tuple"
        and not is_field(link)
    ]
    return prod(lengths) if lengths else 0
