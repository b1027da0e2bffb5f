"""Contexts of custom functions that keep what they returned: a cycle that shows at one look."""

from __future__ import annotations

import gc
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from memprof.cpython.object_addresses import are_exact_instances
from memprof.reference_chain import Link, LinkKind
from memprof.referrers.introspection import instance_dict, refers
from memprof.referrers.links import Naming
from memprof.referrers.search_from_roots import Search
from memprof.referrers.torch_references import is_tensor_type
from memprof.sources.autograd import grad_fn_of, is_leaf
from memprof.sources.training_threads import may_read_graphs

__all__ = ["kept_by_contexts"]

_MOST_NODES = 2_000
"""That are looked at, some microseconds each."""
_CONTAINERS = (tuple, list, dict)
_MOST_CONTAINERS = 32
"""That are looked into for one context."""


def kept_by_contexts(
    search: Search, keys: Collection[int], naming: Naming
) -> dict[int, list[Link]]:
    """The links of those ``keys`` that a context keeps together with its function's own result.

    ``ctx.out = out``: the tensor has the node for its ``grad_fn``, and the node is the context. For
    where time was too short to walk every graph to which no root leads.
    """
    links: dict[int, list[Link]] = {}
    if not keys or not may_read_graphs():
        return links
    unreached = search.heap.unvisited()
    are_nodes = are_exact_instances(unreached, search.node_types)
    for row in np.flatnonzero(are_nodes)[:_MOST_NODES].tolist():
        node = unreached[row]
        ways = _ways_to_tensors(instance_dict(node) or {})
        result = next((way for way in ways if _is_result(way[-1], node)), None)
        if result is None:
            continue
        for way in ways:
            key = search.key_of.get(id(way[-1]), 0)
            if key in keys and key not in links:
                links[key] = _links(node, result, way, naming)
    return links


def _ways_to_tensors(variables: dict[str, object]) -> list[list[object]]:
    """From a context's variables to the tensors in them, also those in a tuple or the like."""
    ways, waiting, visited = [], [[variables]], {id(variables)}
    for way in waiting:
        for value in gc.get_referents(way[-1]):
            if is_tensor_type(type(value)):
                ways.append([*way, value])
            elif (
                type(value) in _CONTAINERS
                and id(value) not in visited
                and len(waiting) < _MOST_CONTAINERS
            ):
                visited.add(id(value))
                waiting.append([*way, value])
    return ways


def _is_result(tensor: Any, node: object) -> bool:
    return not is_leaf(tensor) and grad_fn_of(tensor) is node


def _links(
    node: object, result: Sequence[object], way: Sequence[object], naming: Naming
) -> list[Link]:
    """From the cycle of a context and its result down to a tensor that the context has."""
    by_collector = refers(result[-1], node)
    kind = LinkKind.CYCLE if by_collector else LinkKind.CPP_CYCLE
    cycle = Link(kind, length=len(result))
    through_graph = Link(LinkKind.AUTOGRAD_NODE, nodes=((type(node).__name__, 1),))
    links = naming.links([node, *way])
    if way[-1] is result[-1]:
        return [cycle, through_graph, *links]
    return [cycle, *naming.links([node, *result]), through_graph, *links]
