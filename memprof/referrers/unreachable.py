"""Targets that no root leads to: a reference cycle, or owners that only C++ knows."""

from __future__ import annotations

import gc
import sys
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from functools import cached_property
from itertools import count
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from memprof.cpython.object_addresses import addresses, are_exact_instances
from memprof.reference_chain import Link, LinkKind, Unowned
from memprof.referrers.exit_callbacks import exit_link
from memprof.referrers.heap import CHUNK
from memprof.referrers.introspection import instance_dict, is_one_of
from memprof.referrers.links import Naming
from memprof.referrers.search_from_roots import Search
from memprof.referrers.tensor_attributes import view_link
from memprof.referrers.torch_references import TorchEdges

__all__ = ["Unreached"]

MAX_OBJECTS = 400_000
MAX_STARTS = 3_000
"""Tensors and nodes whose graphs are walked; with more no owner can be told to be the last."""
_MAX_RING = 20_000
_PARTS_OF_OBJECTS = (dict, OrderedDict, list, tuple, types.CellType)


_AFTER_CHUNKS = sys.maxsize
"""Instead of a chunk's number, for what only torch refers to: Python's references come first."""


class _Edge(NamedTuple):
    owner: object
    value: object
    path: tuple[Link, ...] = ()
    """Links through C++; empty where the collector sees the reference."""
    chunk: int = _AFTER_CHUNKS
    """The owner's."""


_chunk_of = attrgetter("chunk")


class _Among:
    """Python's references among some objects, of which one pass keeps the chunks only.

    Which object of a chunk it is that refers to another is looked at when it is asked for.
    """

    def __init__(self, search: Search, objects: list[object], row_of: dict[int, int]) -> None:
        self._search, self._objects, self._row_of = search, objects, row_of
        self._open_objects: set[int] = set()
        rows, chunks = [], []
        for number in range(-(-len(objects) // CHUNK)):
            if search.deadline.check():
                break
            referents = gc.get_referents(*self._chunk(number))
            ids = addresses(referents)[search.heap.unvisited_among(referents)].tolist()
            rows.append(np.fromiter((row_of.get(at, -1) for at in ids), np.int64, len(ids)))
            chunks.append(np.full(len(ids), number))
        if search.deadline.check():  # nobody will believe an answer any more
            rows, chunks = [], []
        all_ids = np.concatenate([np.empty(0, np.int64), *rows])
        order = np.argsort(all_ids, kind="stable")
        self._chunks: list[int] = np.concatenate([all_ids[:0], *chunks])[order].tolist()
        starts = np.searchsorted(all_ids[order], np.arange(len(objects) + 1))
        self._starts: list[int] = starts.tolist()
        """Where in the chunks those of each object begin that refer to it."""
        self.counts = np.diff(starts)
        """How many references each object has from the others."""

    def _chunk(self, number: int) -> list[object]:
        return self._objects[number * CHUNK : (number + 1) * CHUNK]

    def fresh_edges_to(self, one: object) -> Iterator[_Edge]:
        """The references to ``one`` that were not handed out yet, and others from their chunks."""
        row = self._row_of.get(id(one), -1)
        if row < 0:
            return
        for number in self._chunks[self._starts[row] : self._starts[row + 1]]:
            if number in self._open_objects:
                continue
            if self._search.deadline.check():
                return
            self._open_objects.add(number)
            for owner in self._chunk(number):
                for value in gc.get_referents(owner):
                    if id(value) in self._row_of:
                        yield _Edge(owner, value, chunk=number)


class Unreached:
    """The part of the heap that no root leads to, with its references turned round.

    Python's are looked at when a target asks for them that something there shows or stores: what
    only C++ owns, such as a library's workspace, needs none of them.
    """

    def __init__(self, search: Search) -> None:
        self.search = search
        self._objects = search.heap.unvisited()
        cut = len(self._objects) > MAX_OBJECTS
        del self._objects[MAX_OBJECTS:]
        # before an edge refers to one; no other list may hold them
        self._references = list(map(sys.getrefcount, self._objects))
        self._own = _own_references()
        self._tensors = are_exact_instances(self._objects, search.tensor_types)
        nodes = are_exact_instances(self._objects, search.node_types)
        starts = [self._objects[at] for at in np.flatnonzero(self._tensors | nodes)]
        self._is_cut = cut or len(starts) > MAX_STARTS
        self._into: dict[int, list[_Edge]] = defaultdict(list)
        self._stored_edges: dict[int, list[_Edge]] = defaultdict(list)
        for one in starts[:MAX_STARTS]:
            self._torch_edges(one)

    @property
    def complete(self) -> bool:
        """Whether every reference was looked at; else no owner can be told to be the last one."""
        return self.search.complete and not self._is_cut

    @cached_property
    def _row_of(self) -> dict[int, int]:
        return dict(zip(addresses(self._objects).tolist(), count()))

    @cached_property
    def _among(self) -> _Among:
        return _Among(self.search, self._objects, self._row_of)

    def edges_to(self, one: object) -> list[_Edge]:
        """The edges to one of the objects in cycles; none once the time is over."""
        if self.search.deadline.check():
            return []
        for edge in self._among.fresh_edges_to(one):
            self._into[id(edge.value)].append(edge)
        return sorted(self._into.get(id(one), ()), key=_chunk_of)

    def _outside(self, one: object) -> int:
        """References to an object from elsewhere; a tensor's C++ side counts as one of ours."""
        row = self._row_of.get(id(one), -1)
        if row < 0:
            return 0
        own = self._own + int(self._tensors[row])
        return self._references[row] - own - int(self._among.counts[row])

    def _torch_edges(self, one: object) -> None:
        search = self.search
        if search.deadline.check():
            return
        edges = TorchEdges(search.heap, search.targets, search.edges.visible, search.deadline)
        for _, torch_edge in edges.of([one]):
            edge = _Edge(one, torch_edge.value, torch_edge.path)
            if torch_edge.key:
                self._stored_edges[torch_edge.key].append(edge)
            elif id(torch_edge.value) in self._row_of:
                self._into[id(torch_edge.value)].append(edge)

    def links(self, key: int, naming: Naming) -> list[Link]:
        """The links that keep the storage ``key`` alive, from the cycle or the last owner down."""
        stored_edges = self._stored_edges.get(key, [])
        views = (one for one in self.search.tensors if self.search.key_of.get(id(one)) == key)
        starts: list[object] = [one for one in views if id(one) in self._row_of]
        starts += [edge.owner for edge in stored_edges]
        if not starts or self.search.deadline.passed:
            return [Link(LinkKind.UNKNOWN, unowned=Unowned())]
        down, order = self._climb(starts)
        for top in order:
            if self.search.deadline.passed:
                break
            # told from the object whose variables these are, which lies above
            ring = [] if self._is_instance_dict(top) else self._ring(top)
            if ring:
                way = self._down(top, down)
                return self._cycle(*_from_an_object(ring, way), stored_edges, naming)
        top = order[-1]
        own = self._down(top, down)
        way = _with_stored(own, top, stored_edges)
        first = exit_link(top)
        if first is None:
            first = Link(LinkKind.UNKNOWN, unowned=Unowned(owner=type(top).__name__))
        # Of a container, that shows a part only; a tensor by itself is told as what has it.
        view = view_link(own[-1].value) if own and len(own) == len(way) else []
        return [first, *_name_edges(way, naming), *view]

    def _climb(self, starts: list[object]) -> tuple[dict[int, _Edge], list[object]]:
        """Everything above ``starts``, nearest first, with the edge that leads down from each."""
        down: dict[int, _Edge] = {}
        visited = {id(one) for one in starts}
        order: list[object] = []
        queue = deque(starts)
        while queue and len(order) < _MAX_RING:
            one = queue.popleft()
            order.append(one)
            if self.search.deadline.passed:
                break
            for edge in self.edges_to(one):
                if id(edge.owner) not in visited:
                    visited.add(id(edge.owner))
                    down[id(edge.owner)] = edge
                    queue.append(edge.owner)
        return down, order

    def _is_instance_dict(self, one: object) -> bool:
        above = self.edges_to(one) if type(one) is dict else []
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
        while queue and len(down) < _MAX_RING and not self.search.deadline.passed:
            for edge in self.edges_to(queue.popleft()):
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
        self, ring: list[_Edge], way: list[_Edge], stored_edges: list[_Edge], naming: Naming
    ) -> list[Link]:
        _, above = self._climb([ring[0].owner])
        freed = all(self._outside(one) <= 0 for one in above) and not any(e.path for e in ring)
        kind = LinkKind.CYCLE if freed else LinkKind.CPP_CYCLE
        last = way[-1].value if way else ring[0].owner
        return [
            Link(kind, length=len(ring)),
            *_name_edges(ring, naming),
            *_name_edges(_with_stored(way, last, stored_edges), naming),
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
    sample = [object()]
    also = list(sample)
    return next(map(sys.getrefcount, also))


def _with_stored(way: list[_Edge], last: object, stored_edges: list[_Edge]) -> list[_Edge]:
    """``way`` and the edge from its end to a tensor that only a graph holds."""
    return [*way, *[edge for edge in stored_edges if edge.owner is last][:1]]


def _name_edges(way: list[_Edge], naming: Naming) -> list[Link]:
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
