"""Contexts of custom functions that keep what they returned: a cycle that shows at one look."""

from __future__ import annotations

from collections.abc import Collection

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
        values = list((instance_dict(node) or {}).values())  # another thread may add to them
        kept = [one for one in values if is_tensor_type(type(one))]
        result = next((one for one in kept if not is_leaf(one) and grad_fn_of(one) is node), None)
        if result is None:
            continue
        for tensor in kept:
            key = search.key_of.get(id(tensor), 0)
            if key in keys and key not in links:
                links[key] = _links(node, result, tensor, naming)
    return links


def _links(node: object, result: object, tensor: object, naming: Naming) -> list[Link]:
    """From the cycle of a context and its result down to a tensor that the context has."""
    by_collector = refers(result, node)
    cycle = Link(LinkKind.CYCLE if by_collector else LinkKind.CPP_CYCLE, length=2)
    through_graph = Link(LinkKind.AUTOGRAD_NODE, nodes=((type(node).__name__, 1),))
    variables = instance_dict(node)
    links = naming.links([node, variables, tensor])
    if tensor is result:
        return [cycle, through_graph, *links]
    return [cycle, *naming.links([node, variables, result]), through_graph, *links]
