"""How long the autograd graphs of live tensors are: growing chains cost the host's memory."""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from memprof.referrers.gc_objects import live_tensors, young_tensors
from memprof.referrers.heap import Deadline
from memprof.referrers.search_from_roots import quiet
from memprof.referrers.torch_references import plain_torch
from memprof.sources.autograd import grad_fns_of, is_leaf
from memprof.sources.graph_nodes import most_nodes, note_nodes
from memprof.sources.training_threads import may_read_graphs

__all__ = ["WALK_S", "GraphGrowth", "LongestGraph", "longest_graph"]

WALK_S = 0.1
"""The longest that graphs are walked at one look."""
_MOST_NODES = 50_000
_MOST_ROOTS = 256
_CHECKS = 4
_STEADY = 2.5
"""The fastest growth between two looks over the slowest: the graphs of a model with changing
lengths go up and down, a chain grows by about the same from step to step."""
_LEAST_NODES_PER_STEP = 0.2
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


def longest_graph(budget_s: float = WALK_S, *, young: bool = False) -> LongestGraph:
    """The tensor whose graph has the most nodes, and their number; none: 0 nodes.

    With ``young`` only among new objects, of which the end of a chain that grows is mostly one.
    """
    best = LongestGraph(0)
    if not may_read_graphs():
        return best
    with quiet(), plain_torch():
        newest_first = (one for one in reversed(_tensors(young=young)) if not is_leaf(one))
        made = list(islice(newest_first, _MOST_ROOTS))[::-1]
        graphs = zip(made, grad_fns_of(made), strict=True)
        roots = [(one, node) for one, node in graphs if node is not None]
        deadline = Deadline(budget_s)  # a busy machine must not end the walk before it begins
        for root, start in roots:
            nodes = _nodes(start, deadline)
            note_nodes(len(nodes))
            if len(nodes) > best.nodes:
                best = LongestGraph(len(nodes), weakref.ref(root), *_span(nodes))
            if deadline.passed:
                break
    return best


def _tensors(*, young: bool) -> list[Any]:
    return young_tensors() if young else live_tensors()


def _span(nodes: set[object]) -> tuple[int, int]:
    """The least and the greatest sequence number of nodes, leaves left out."""
    numbers = [node._sequence_nr() for node in nodes if hasattr(node, "_sequence_nr")]
    numbers = [one for one in numbers if 0 <= one < _ACCUMULATE_GRAD]
    return (min(numbers), max(numbers)) if numbers else (0, 0)


def _nodes(start: object, deadline: Deadline) -> set[object]:
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
    return visited


@dataclass(slots=True)
class GraphGrowth:
    """Remembers the longest graph at a few step ends and says when it keeps growing.

    Only one that reaches back into the steps before the last look has grown: a program whose
    sequences become longer makes a larger graph each time.
    """

    _sizes: list[tuple[int, int]] = field(default_factory=list)
    _newest: int = 0

    def add(self, step: int, longest: LongestGraph) -> float:
        """Nodes a step by which the longest graph grew at the last four looks; 0: it did not."""
        if longest.oldest > self._newest:
            self._sizes = []
        self._newest = longest.newest
        self._sizes = [*self._sizes, (step, longest.nodes)][-_CHECKS:]
        if len(self._sizes) < _CHECKS:
            return 0.0
        pairs = zip(self._sizes, self._sizes[1:], strict=False)
        rates = [(n1 - n0) / max(1, s1 - s0) for (s0, n0), (s1, n1) in pairs]
        slow, fast = min(rates), max(rates)
        steady = slow >= _LEAST_NODES_PER_STEP and fast <= _STEADY * slow
        (first, before), (last, after) = self._sizes[0], self._sizes[-1]
        return (after - before) / max(1, last - first) if steady else 0.0
