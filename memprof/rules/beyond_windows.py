"""Growth that began in a window and was counted after it: a container that looks saw grow."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from memprof.records import Finding, Holder
from memprof.reference_chain import Link, LinkKind, largest_container
from memprof.rules.counted_rise import counted_rise
from memprof.rules.growing_groups import GrowingGroup
from memprof.rules.successive_looks import grown
from memprof.views.examination import DeviceExamination
from memprof.views.survivors import Survival

__all__ = ["beyond_windows", "lengthening"]

Ints = npt.NDArray[np.int64]

_MOSTLY_COUNTED = 0.5
"""Of the steps: where more of them were recorded, those tell by themselves what grows."""
_LEAST_ITEMS = 3
"""In the container at the last look; it had fewer at one before."""
_SHARE = 0.5
"""Of the bytes that were counted to rise in the windows, that what the container has must be."""
_CONFIDENCE = 0.5
_Way: TypeAlias = tuple[tuple[LinkKind, str, str], ...]
"""The links before a container."""


def beyond_windows(
    examination: DeviceExamination,
    survival: Survival,
    holders_of: Mapping[int, Sequence[Holder]],
    stacks: Collection[int],
    longer: Sequence[Holder] = (),
) -> list[tuple[GrowingGroup, tuple[Holder, ...]]]:
    """What the container of the program holds that looks saw grow, as far as it was recorded.

    Each group comes with its holders, which say how long that container was at the last look.
    Windows may be too short to show a trend: a few conversations of a server, each of hundreds of
    steps. Counters show that the bytes rise to the end, at the rate at which the container took
    them up. ``stacks`` have groups of their own already. ``longer`` are chains that
    end at what looks saw become longer, whatever they searched for: a list, or a graph, of which a
    variable that is added to keeps one for each time.
    """
    risen, steps = counted_rise(examination.steps), survival.steps
    if risen is None or not len(steps):
        return []
    if len(survival) > _MOSTLY_COUNTED * (risen.last_step - risen.first_step):
        return []
    lives = survival.lives
    everything = np.arange(len(lives))
    stays = survival.outlast(everything) & (lives.allocated_in >= 0)
    rows_of = {
        stack: everything[stays & (lives.stack == stack)]
        for stack in holders_of
        if stack not in stacks
    }
    containers = dict.fromkeys(way for one in rows_of for way in _growing(holders_of[one]))
    containers |= dict.fromkeys(_way_to(one.links, len(one.links)) for one in longer)
    parts_of = {
        way: [rows for one, rows in rows_of.items() if len(rows) and _has(holders_of[one], way)]
        for way in containers
    }
    bytes_of = {
        way: sum(int(lives.size[rows].sum()) for rows in parts) for way, parts in parts_of.items()
    }
    way = max(bytes_of, key=lambda one: bytes_of[one], default=())
    if not way or bytes_of[way] < _SHARE * risen.within(steps):
        return []
    nbytes, length = bytes_of[way], max(_length(one, way) for one in holders_of.values())
    return [
        (
            GrowingGroup(
                stack=int(lives.stack[rows[0]]),
                rows=rows,
                places=np.unique(lives.allocated_in[rows]),
                per_step=risen.per_step * int(lives.size[rows].sum()) / nbytes,
                confidence=_CONFIDENCE,
                every=1,
            ),
            tuple(_with_growth(one, way, length) for one in holders_of[int(lives.stack[rows[0]])]),
        )
        for rows in parts_of[way]
    ]


def lengthening(findings: Sequence[Finding]) -> list[Holder]:
    """The chains to what some looks at a device saw become longer, in the order of the looks."""
    longer, lengths = [], dict[_Way, int]()
    for one in findings:
        holder = one.holders[0] if one.holders else None
        if holder is None or not holder.is_named:
            continue
        if one.details.get("nodes_per_step"):
            longer.append(holder)
            continue
        at = largest_container(holder.links)
        if at is None:
            continue
        way, length = _way_to(holder.links, at), holder.links[at].length
        if length >= _LEAST_ITEMS and 0 < lengths.get(way, 0) < length:
            longer.append(msgspec.structs.replace(holder, links=holder.links[:at]))
        lengths[way] = length
    return longer


def _growing(holders: Sequence[Holder]) -> list[_Way]:
    """The way to a container, from a name on, that had fewer items at an earlier look."""
    for holder in holders[:1]:
        at = largest_container(holder.links)
        if at is not None and holder.is_named:
            link = holder.links[at]
            if link.grows and link.length >= _LEAST_ITEMS:
                return [_way_to(holder.links, at)]
    return []


def _has(holders: Sequence[Holder], way: _Way) -> bool:
    """Whether the first of the holders goes by that way, and on from its end."""
    links = holders[0].links if holders else []
    return len(links) > len(way) and _way_to(links, len(way)) == way


def _length(holders: Sequence[Holder], way: _Way) -> int:
    return holders[0].links[len(way)].length if _has(holders, way) else 0


def _with_growth(holder: Holder, way: _Way, length: int) -> Holder:
    """The holder, with what another look told of the container that it has part in."""
    if not _has([holder], way):
        return holder
    links = list(holder.links)
    if length <= 0:
        return holder  # it is a graph that has become longer
    links[len(way)] = msgspec.structs.replace(grown(links[len(way)]), length=length)
    return msgspec.structs.replace(holder, links=links)


def _way_to(links: Sequence[Link], at: int) -> _Way:
    return tuple((link.kind, link.type_name, link.name) for link in links[:at])
