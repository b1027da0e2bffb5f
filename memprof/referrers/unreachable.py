"""Targets that no root leads to: a reference cycle, or owners that only C++ knows."""

from __future__ import annotations

import gc
import sys
import types
from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass, field

import numpy as np

from memprof.cpython.object_addresses import addresses, are_exact_instances
from memprof.reference_chain import Link, LinkKind, Unowned
from memprof.referrers.introspection import instance_dict, is_one_of
from memprof.referrers.links import Naming
from memprof.referrers.search_from_roots import Search
from memprof.referrers.torch_references import TorchEdges

__all__ = ["Unreached"]

MAX_OBJECTS = 400_000
_MAX_STARTS = 3_000
_MAX_RING = 20_000
_PARTS_OF_OBJECTS = (dict, OrderedDict, list, tuple, types.CellType)


@dataclass(frozen=True)
class _Edge:
    owner: object
    value: object
    path: tuple[Link, ...] = ()
    """Links through C++; empty where the collector sees the reference."""


@dataclass
class Unreached:
    """The part of the heap that no root leads to, with its references turned round."""

    search: Search
    _into: dict[int, list[_Edge]] = field(default_factory=lambda: defaultdict(list))
    _stored: dict[int, list[_Edge]] = field(default_factory=lambda: defaultdict(list))
    _outside: dict[int, int] = field(default_factory=dict)
    complete: bool = True
    """Whether every reference was looked at; else no owner can be told to be the last one."""

    def __post_init__(self) -> None:
        objects = self.search.heap.unvisited()
        cut = len(objects) > MAX_OBJECTS
        del objects[MAX_OBJECTS:]  # no other list may hold them: their references are counted
        counts = list(map(sys.getrefcount, objects))
        base = _own_references()
        tensors = are_exact_instances(objects, self.search.tensor_types)
        nodes = are_exact_instances(objects, self.search.node_types)
        outside = np.array(counts, np.int64) - base - tensors  # a tensor's C++ side counts as one
        self._outside = dict(zip(addresses(objects).tolist(), outside.tolist(), strict=True))
        self._python_edges(objects)
        starts = [objects[at] for at in np.flatnonzero(tensors | nodes)]
        for one in starts[:_MAX_STARTS]:
            self._torch_edges(one)
        cut = cut or len(starts) > _MAX_STARTS
        self.complete = self.search.complete and not cut

    def _python_edges(self, objects: list[object]) -> None:
        outside = self._outside
        for count, owner in enumerate(objects):
            if count % 1024 == 0 and self.search.deadline.check():
                return
            for value in gc.get_referents(owner):
                at = id(value)
                if at in outside:
                    self._into[at].append(_Edge(owner, value))
                    outside[at] -= 1

    def _torch_edges(self, one: object) -> None:
        search = self.search
        if search.deadline.check():
            return
        edges = TorchEdges(search.heap, search.targets, search.edges.visible, search.deadline)
        for _, reached in edges.of([one]):
            edge = _Edge(one, reached.value, reached.path)
            if reached.key:
                self._stored[reached.key].append(edge)
            elif id(reached.value) in self._outside:
                self._into[id(reached.value)].append(edge)

    def links(self, key: int, naming: Naming) -> list[Link]:
        """The links that keep the storage ``key`` alive, from the cycle or the last owner down."""
        stored = self._stored.get(key, [])
        views = (one for one in self.search.tensors if self.search.key_of.get(id(one)) == key)
        starts: list[object] = [one for one in views if id(one) in self._outside]
        starts += [edge.owner for edge in stored]
        if not starts:
            return [Link(LinkKind.UNKNOWN, unowned=Unowned())]
        down, order = self._climb(starts)
        for top in order:
            # told from the object whose variables these are, which lies above
            ring = [] if self._is_instance_dict(top) else self._ring(top)
            if ring:
                way = self._down(top, down)
                return self._cycle(*_from_an_object(ring, way), stored, naming)
        top = order[-1]
        way = _with_stored(self._down(top, down), top, stored)
        first = Link(LinkKind.UNKNOWN, unowned=Unowned(owner=type(top).__name__))
        return [first, *_named(way, naming)]

    def _climb(self, starts: list[object]) -> tuple[dict[int, _Edge], list[object]]:
        """Everything above ``starts``, nearest first, with the edge that leads down from each."""
        down: dict[int, _Edge] = {}
        seen = {id(one) for one in starts}
        order: list[object] = []
        queue = deque(starts)
        while queue and len(order) < _MAX_RING:
            one = queue.popleft()
            order.append(one)
            for edge in self._into.get(id(one), []):
                if id(edge.owner) not in seen:
                    seen.add(id(edge.owner))
                    down[id(edge.owner)] = edge
                    queue.append(edge.owner)
        return down, order

    def _is_instance_dict(self, one: object) -> bool:
        above = self._into.get(id(one), []) if type(one) is dict else []
        return any(instance_dict(edge.owner) is one for edge in above)

    def _down(self, top: object, down: dict[int, _Edge]) -> list[_Edge]:
        way = []
        while id(top) in down:
            way.append(down[id(top)])
            top = way[-1].value
        return way

    def _ring(self, one: object) -> list[_Edge]:
        """The shortest way from ``one`` back to itself; empty where there is none."""
        down: dict[int, _Edge] = {}
        queue = deque([one])
        while queue and len(down) < _MAX_RING:
            for edge in self._into.get(id(queue.popleft()), []):
                if edge.owner is one:
                    way = [edge]
                    while way[-1].value is not one:
                        way.append(down[id(way[-1].value)])
                    return way
                if id(edge.owner) not in down:
                    down[id(edge.owner)] = edge
                    queue.append(edge.owner)
        return []

    def _cycle(
        self, ring: list[_Edge], way: list[_Edge], stored: list[_Edge], naming: Naming
    ) -> list[Link]:
        _, above = self._climb([ring[0].owner])
        freed = all(self._outside.get(id(one), 0) <= 0 for one in above) and not any(
            e.path for e in ring
        )
        kind = LinkKind.CYCLE if freed else LinkKind.CPP_CYCLE
        last = way[-1].value if way else ring[0].owner
        return [
            Link(kind, length=len(ring)),
            *_named(ring, naming),
            *_named(_with_stored(way, last, stored), naming),
        ]


def _from_an_object(ring: list[_Edge], way: list[_Edge]) -> tuple[list[_Edge], list[_Edge]]:
    """The same cycle and way begun at an object that has a class, not at its dict or a cell.

    Those have no names of their own: ``net.block`` is two links through the dict of ``net``.
    """
    for _ in ring:
        if not is_one_of(type(ring[0].owner), _PARTS_OF_OBJECTS):
            return ring, way
        ring = [ring[-1], *ring[:-1]]
        way = [ring[0], *way]
    return ring, way


def _own_references() -> int:
    """What ``sys.getrefcount`` shows for an object that only our two lists hold."""
    held = [object()]
    also = list(held)
    return next(map(sys.getrefcount, also))


def _with_stored(way: list[_Edge], last: object, stored: list[_Edge]) -> list[_Edge]:
    """``way`` and the edge from its end to a tensor that only a graph holds."""
    return [*way, *[edge for edge in stored if edge.owner is last][:1]]


def _named(way: list[_Edge], naming: Naming) -> list[Link]:
    links: list[Link] = []
    run: list[object] = []
    for edge in way:
        run = run or [edge.owner]
        if edge.path:
            links += [*naming.links(run), *edge.path]
            run = [edge.value]
        else:
            run.append(edge.value)
    return [*links, *naming.links(run)]
