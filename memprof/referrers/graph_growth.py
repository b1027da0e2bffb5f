"""How long the autograd graphs of live tensors are: growing chains cost the host's memory."""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from memprof.referrers.gc_objects import live_tensors, young_tensors
from memprof.referrers.heap import Deadline
from memprof.referrers.search_from_roots import quiet
from memprof.referrers.torch_references import plain_torch
from memprof.sources.autograd import grad_fns_of, is_leaf
from memprof.sources.graph_nodes import most_nodes, note_nodes
from memprof.sources.training_threads import may_read_graphs

__all__ = ["WALK_S", "Chain", "GraphGrowth", "LongestGraph", "longest_graph"]

WALK_S = 0.1
"""The longest that graphs are walked at one look."""
_MOST_NODES = 50_000
_MOST_ROOTS = 256
_CHECKS, _FEWEST = 4, 2
_STEADY = 2.5
"""The fastest growth between two looks over the slowest: the graphs of a model with changing
lengths go up and down, a chain grows by about the same from step to step."""
_LEAST_NODES_PER_STEP = 0.2
_MOST_HOPS = 1024
"""Nodes of a graph that is too large to walk, through which its oldest ones are looked for."""
_MOST_LINKS = 4
"""Nodes from a chain's end to what it was in the step before: `0.9 * mean + 0.1 * loss` has two."""
_ACCUMULATE_GRAD = 1 << 63
"""Nodes that store into ``.grad`` have the greatest number, whenever they were made."""


@dataclass(frozen=True, slots=True)
class LongestGraph:
    """The largest graph that hangs on one live tensor."""

    nodes: int
    tensor: weakref.ref[object] | None = None
    oldest: int = 0
    """The least of its nodes' sequence numbers, which count up in each thread; 0: not known."""
    newest: int = 0
    """The greatest."""
    is_cut: bool = False
    """It has more nodes than may be looked at."""


@dataclass(frozen=True, slots=True)
class Chain:
    """A graph that grows from step to step and is too long to walk, as it was at a look."""

    newest: int
    """The sequence number of the node that it ended in."""
    nodes_per_step: float
    metadata: dict[str, object]
    """Of a node a little behind that one; empty. A node takes no weak reference, and holds this."""

    @property
    def lives(self) -> bool:
        """Whether that node does: it refers to its metadata, and nobody to the other dict."""
        other = Chain(self.newest, self.nodes_per_step, {})
        return sys.getrefcount(self.metadata) > sys.getrefcount(other.metadata)


def longest_graph(
    budget_s: float = WALK_S, *, young: bool = False, chain: Chain | None = None
) -> LongestGraph:
    """The tensor whose graph has the most nodes, and their number; none: 0 nodes.

    With ``young`` only among new objects, of which the end of a chain that grows is mostly one.
    With a ``chain``, which is known to be too long to walk, the tensor at its new end, if it has
    one: nothing else is looked for.
    """
    best, end = LongestGraph(0), None
    if not may_read_graphs():
        return best
    with quiet(), plain_torch():
        newest_first = (one for one in reversed(_tensors(young=young)) if not is_leaf(one))
        made = list(islice(newest_first, _MOST_ROOTS))[::-1]
        graphs = zip(made, grad_fns_of(made), strict=True)
        roots = [(one, node) for one, node in graphs if node is not None]
        if chain is not None:
            return _grown(chain, roots)
        deadline = Deadline(budget_s)  # a busy machine must not end the walk before it begins
        for root, start in roots:
            nodes, is_cut = _nodes(start, deadline)
            note_nodes(len(nodes))
            if len(nodes) > best.nodes:
                best, end = (
                    LongestGraph(len(nodes), weakref.ref(root), *_span(nodes), is_cut),
                    start,
                )
            if deadline.passed:
                break
        if best.is_cut:
            hops = most_nodes(_MOST_HOPS)
            best = replace(best, oldest=min(best.oldest, _oldest_behind(end, hops)))
    return best


def _tensors(*, young: bool) -> list[Any]:
    return young_tensors() if young else live_tensors()


def _span(nodes: set[object]) -> tuple[int, int]:
    """The least and the greatest sequence number of nodes, leaves left out."""
    numbers = [one for one in map(_number, nodes) if one >= 0]
    return (min(numbers), max(numbers)) if numbers else (0, 0)


def _number(node: Any) -> int:
    """The sequence number of a node that is no leaf; -1 of others."""
    number = node._sequence_nr() if hasattr(node, "_sequence_nr") else -1
    return number if 0 <= number < _ACCUMULATE_GRAD else -1


def _grown(chain: Chain, roots: list[tuple[Any, object]]) -> LongestGraph:
    """The end of a chain that has become longer: what it ended in before lives, and is behind it.

    A step's own graph is made within a step. The new end has the one of the step before a few nodes
    away, which that many numbers lie behind.
    """
    if not chain.lives:
        return LongestGraph(0)
    for root, start in reversed(roots):
        newest = _number(start)
        least = newest - chain.nodes_per_step
        if newest > chain.newest and _oldest_behind(start, _MOST_LINKS) <= least:
            return LongestGraph(1, weakref.ref(root), chain.newest, newest, is_cut=True)
    return LongestGraph(0)


def _oldest_behind(node: Any, most: int) -> int:
    """The least sequence number on the way that goes to the oldest node at each step.

    A sum of losses is made of the sum before and of a new loss, the graph of which is younger: so
    it is the way down the chain.
    """
    return min(max(0, _number(one)) for one in _way_back(node, most))


def _way_back(node: Any, most: int) -> Iterator[Any]:
    """A node, and so many behind it, each the oldest of those that the one before has."""
    yield node
    for _ in range(most):
        before = [one for one, _ in node.next_functions if one is not None and _number(one) >= 0]
        if not before:
            return
        node = min(before, key=_number)
        note_nodes(1)
        yield node


def _metadata_behind(longest: LongestGraph) -> dict[str, object] | None:
    """The metadata of a node a little behind the graph's end; None where they are in use.

    The end may be computed of the chain, as a mean is of a sum, and go with the next one. In what
    anomaly detection or the program has put there may be a reference to the graph: to keep that
    would keep the graph.
    """
    tensor = longest.tensor() if longest.tensor is not None else None
    if tensor is None:
        return None
    *_, node = _way_back(grad_fns_of([tensor])[0], _MOST_LINKS)
    metadata: dict[str, object] | None = getattr(node, "metadata", None)
    return metadata if type(metadata) is dict and not metadata else None


def _nodes(start: object, deadline: Deadline) -> tuple[set[object], bool]:
    """The nodes of a graph, and whether there are more of them than may be looked at."""
    visited = {start}
    queue = deque([start])
    most = min(_MOST_NODES, most_nodes(2 * _MOST_NODES) // 2)
    while queue and len(visited) < most:
        for node, _ in queue.popleft().next_functions:  # type: ignore[attr-defined]
            if node is not None and node not in visited:
                visited.add(node)
                queue.append(node)
        if len(visited) % 256 == 0 and deadline.check():
            break
    return visited, bool(queue)


@dataclass(slots=True)
class GraphGrowth:
    """Remembers the longest graph at a few step ends and says when it keeps growing.

    Only one that reaches back into the steps before the last look has grown: a program whose
    sequences become longer makes a larger graph each time.
    """

    _sizes: list[tuple[int, int]] = field(default_factory=list)
    _newest: int = 0
    _chain: Chain | None = None

    @property
    def chain(self) -> Chain | None:
        """What the last look says of a chain that grows and is too long to walk; else None."""
        return self._chain

    def add(self, step: int, longest: LongestGraph) -> float:
        """Nodes a step by which the longest graph grew at the last four looks; 0: it did not."""
        if longest.oldest > self._newest:
            self._sizes = []
        is_longer, self._newest = longest.newest > self._newest, longest.newest
        nodes = longest.nodes
        if longest.is_cut and is_longer:
            nodes = max(nodes, self._expected(step))
        self._sizes = [*self._sizes, (step, nodes)][-_CHECKS:]
        rate = self._rate()
        metadata = _metadata_behind(longest) if longest.is_cut and rate else None
        self._chain = Chain(self._newest, rate, metadata) if metadata is not None else None
        return rate

    def _rate(self) -> float:
        if len(self._sizes) < _CHECKS:
            return 0.0
        pairs = zip(self._sizes, self._sizes[1:], strict=False)
        rates = [(n1 - n0) / max(1, s1 - s0) for (s0, n0), (s1, n1) in pairs]
        slow, fast = min(rates), max(rates)
        steady = slow >= _LEAST_NODES_PER_STEP and fast <= _STEADY * slow
        (first, before), (last, after) = self._sizes[0], self._sizes[-1]
        return (after - before) / max(1, last - first) if steady else 0.0

    def _expected(self, step: int) -> int:
        """The nodes of a graph that goes on as before, of which nobody may count all."""
        if len(self._sizes) < _FEWEST:
            return 0
        (first, before), (last, nodes) = self._sizes[0], self._sizes[-1]
        return nodes + round((nodes - before) / max(1, last - first) * (step - last))
