"""Which growing groups are one leak: the same thing holds them, or they grow in the same steps."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import numpy.typing as npt

from memprof.records import Finding, Holder
from memprof.reference_chain import THROUGH_GRAPH, Link, LinkKind, breadth, way

__all__ = [
    "Cluster",
    "Member",
    "clusters",
    "held_by",
    "is_bounded",
    "kept_itself",
    "outline",
]

Ints = npt.NDArray[np.int64]

_CYCLES = frozenset({LinkKind.CYCLE, LinkKind.CPP_CYCLE})
_INSIDE = THROUGH_GRAPH | {
    LinkKind.BASE,
    LinkKind.GRAD,
    LinkKind.OPTIMIZER_STATE,
    LinkKind.PARAMETER,
    LinkKind.BUFFER,
}
"""Links below the thing that a person would let go of."""
_CONTAINERS = frozenset({LinkKind.ITEM, LinkKind.KEY, LinkKind.LRU_CACHE})
_SAME_STEPS = 0.8


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One growing group, in what matters for telling which belong together."""

    stack: int
    rows: Ints
    places: Ints
    """Where it grows."""
    per_place: float
    confidence: float
    every: int
    collected: bool = False
    """The garbage collector was seen to free such tensors."""
    replaced: bool = False


@dataclass(slots=True, eq=False)
class Cluster:
    """Members with one cause, the largest first once `clusters` is done."""

    members: list[Member]
    holders: list[Holder] = field(default_factory=list)

    @property
    def per_place(self) -> float:
        """Bytes a step of all members."""
        return sum(member.per_place for member in self.members)

    @property
    def places(self) -> Ints:
        """Where any member grows."""
        return np.unique(np.concatenate([member.places for member in self.members]))


def held_by(findings: Iterable[Finding], device: str) -> dict[int, tuple[Holder, ...]]:
    """For every stack the holders that the last search in the job found."""
    found: dict[int, tuple[Holder, ...]] = {}
    for finding in findings:
        if finding.finding == "holders" and finding.device == device and finding.holders:
            if not finding.holders[0].is_named and finding.stack in found:
                continue  # an earlier look knew more: the job's names may be gone at the end
            found[finding.stack] = tuple(finding.holders)
    return found


def clusters(members: Sequence[Member], holders: Mapping[int, Sequence[Holder]]) -> list[Cluster]:
    """Groups of members with one cause, the fastest growing first."""
    named: dict[tuple[Hashable, ...], Cluster] = {}
    nameless: list[Member] = []
    for member in sorted(members, key=lambda one: -one.per_place):
        held = holders.get(member.stack, ())
        if not held or not held[0].is_named:
            nameless.append(member)
            continue
        cluster = named.setdefault(outline(held[0]), Cluster([]))
        cluster.members.append(member)
        cluster.holders += held
    found = list(named.values())
    for member in nameless:
        same = _with_same_steps(found, member)
        if same is None:
            same = Cluster([])
            found.append(same)
        same.members.append(member)
        same.holders += holders.get(member.stack, ())
    return sorted(found, key=lambda cluster: -cluster.per_place)


def kept_itself(cluster: Cluster, holders: Mapping[int, Sequence[Holder]]) -> float:
    """The share of a cluster's growth that is there without any graph, from 0 to 1.

    Of a stack with several ways of holding the first counts: that is the shortest.
    """
    itself = 0.0
    for member in cluster.members:
        held = holders.get(member.stack, ())[:1]
        if any(one.is_named and not one.through_graph for one in held):
            itself += member.per_place
    return itself / cluster.per_place if cluster.per_place > 0 else 0.0


def _with_same_steps(found: Sequence[Cluster], member: Member) -> Cluster | None:
    """A cluster that grows in the same steps, as a graph's tensors do with what holds it."""
    best: tuple[float, Cluster] | None = None
    for cluster in found:
        places = cluster.members[0].places
        shared = len(np.intersect1d(places, member.places))
        share = shared / max(1, len(np.union1d(places, member.places)))
        if share >= _SAME_STEPS and (best is None or share > best[0]):
            best = share, cluster
    return best[1] if best else None


def outline(holder: Holder) -> tuple[Hashable, ...]:
    """What two tensors' holders have in common when one thing holds both.

    The names down to the container that grows, else down to where the graph, the module or the
    optimizer begins; for a cycle the line that makes it.
    """
    if holder.kind in _CYCLES:
        place = (holder.filename, holder.line) if holder.line else ("", 0)
        return (holder.kind, place)
    links = way(holder.links[: _depth(holder.links)])
    return tuple(link for link, _ in groupby(links)) or (holder.kind, holder.filename, holder.line)


def _depth(links: Sequence[Link]) -> int:
    """Links up to the largest container, or up to what lies inside the thing held."""
    items = [at for at, link in enumerate(links) if link.kind in _CONTAINERS and link.length > 1]
    if items:
        return max(items, key=lambda at: breadth(links[at])) + 1
    inside = (at for at, link in enumerate(links) if link.kind in _INSIDE and at)
    return next(inside, len(links))


def is_bounded(holder: Holder) -> bool:
    """Whether the container that grows can hold so much and no more (``maxlen``, ``maxsize``)."""
    depth = _depth(holder.links)
    return bool(holder.links) and holder.links[max(0, depth - 1)].limit > 0
