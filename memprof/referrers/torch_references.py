"""References that only torch's C++ side holds: graphs, saved tensors, gradients, view bases.

The cyclic collector does not show them, so they are walked here, without running anybody's code:
a tensor saved under ``saved_tensors_hooks`` is never unpacked (that would run the user's hook, and
recompute a checkpointed block); the raw `SavedTensor` says whether it has hooks, and gives what the
pack hook returned. It does so from torch 2.8 on; before, saved tensors are left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import Any, Protocol, TypeAlias

import torch

from memprof.cpython.signal_errors import guarded_errors
from memprof.reference_chain import Link, LinkKind
from memprof.referrers.heap import Deadline
from memprof.referrers.targets import Targets, unwrapped
from memprof.sources.autograd import grad_fn_of, gradient_of, is_leaf
from memprof.sources.graph_nodes import is_node_type, most_nodes, note_nodes
from memprof.sources.training_threads import may_read_graphs

__all__ = [
    "SearchedHeap",
    "TorchEdges",
    "TorchReference",
    "is_bare",
    "is_symbolic",
    "is_tensor_type",
    "plain_torch",
    "through_graph",
]

_CAN_READ_SAVED = hasattr(getattr(torch._C._autograd, "SavedTensor", None), "data")
_MAX_NODES = 1_000_000
_CHECK_EVERY = 256
_MOST_RUNS = 6
"""Of nodes in a link: the middle of a longer chain is left out."""


@contextmanager
def plain_torch() -> Iterator[None]:
    """Read attributes of tensors as torch's own, past ``__torch_function__`` of subclasses."""
    with torch._C.DisableTorchFunction():
        yield


def is_tensor_type(kind: type) -> bool:
    """Whether instances are tensors, asked of the type (``isinstance`` may run user code)."""
    return type.__subclasscheck__(torch.Tensor, kind)


def is_symbolic(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a compiler's, with sizes that are no numbers: it has no memory.

    Most that one could ask of it would raise, or write a guard into the compiler's books.
    """
    return bool(getattr(tensor, "_has_symbolic_sizes_strides", False))


def is_bare(tensor: torch.Tensor) -> bool:
    """Whether a tensor keeps nothing alive on torch's C++ side, as most do."""
    return (
        is_leaf(tensor)  # asked first: reading ``grad_fn`` or ``grad`` makes Python objects
        and not tensor._is_view()
        and (not tensor.requires_grad or gradient_of(tensor) is None)
        and getattr(tensor, "_post_accumulate_grad_hooks", None) is None
    )


class SearchedHeap(Protocol):
    """The Python objects among which a walk through torch's references is made."""

    complete: bool
    """Whether everything that was to be followed was."""

    def is_tracked(self, one: object) -> bool:
        """Whether the search goes on from an object by Python's references."""


@dataclass(frozen=True)
class TorchReference:
    """Something a tensor or node keeps alive through C++, and the way there."""

    value: object
    key: int
    """Target key of a tensor that no Python object stands for; 0 otherwise."""
    path: tuple[Link, ...]


@dataclass(frozen=True)
class _Trail:
    before: _Trail | None
    kind: LinkKind
    name: str
    type_name: str


_Stop: TypeAlias = "tuple[object, _Trail | None, int]"
"""Something on the way, how it was come to, and the place of the start among all."""


@dataclass
class TorchEdges:
    """Walks graphs from tensors and nodes; every node is walked once in the life of this object."""

    heap: SearchedHeap
    targets: Targets
    visible: frozenset[int]
    """Ids of the tensors that Python objects stand for: those are reported, not walked through."""
    deadline: Deadline
    _alive: dict[int, object] = field(default_factory=dict)

    def of(self, starts: Sequence[object]) -> Iterator[tuple[int, TorchReference]]:
        """All that ``starts``, tensors or nodes, keep alive and that is not reported yet.

        Each with the place of the start that is the fewest hops away: in a chain through many
        steps that is what carries it on, and not what was computed from it last.
        """
        if not may_read_graphs():
            self.heap.complete = False
            return
        already = len(self._alive)
        room = already + most_nodes(_MAX_NODES - already)
        try:
            yield from self._walk(starts, room)
        finally:
            note_nodes(len(self._alive) - already)

    def _walk(self, starts: Sequence[object], room: int) -> Iterator[tuple[int, TorchReference]]:
        queue: deque[_Stop] = deque()
        for place, start in enumerate(starts):
            if is_tensor_type(type(start)):
                queue.append((start, None, place))
            elif id(start) not in self._alive:
                self._alive[id(start)] = start
                queue.append((start, None, place))
        count = 0
        while queue:
            count += 1
            if len(self._alive) >= room or (count % _CHECK_EVERY == 0 and self.deadline.check()):
                self.heap.complete = False
                return
            value, trail, place = queue.popleft()
            hops: Callable[[Any], Iterator[_Hop]] = (
                _tensor_hops if is_tensor_type(type(value)) else _node_hops
            )
            for other, kind, name, owner in _readable(hops(value)):
                stop = other, _Trail(trail, kind, name, owner), place
                yield from ((place, edge) for edge in self._visit(stop, queue))

    def _visit(self, stop: _Stop, queue: deque[_Stop]) -> Iterator[TorchReference]:
        value, trail, _ = stop
        if is_tensor_type(type(value)):
            yield from self._visit_tensor(stop, queue)
        elif is_node_type(type(value)):
            if id(value) not in self._alive:
                self._alive[id(value)] = value
                queue.append(stop)
                if issubclass(
                    type(value), torch._C._FunctionBase
                ):  # its ctx attributes are Python's
                    yield TorchReference(value, 0, _path(trail))
        elif self.heap.is_tracked(value):
            yield TorchReference(value, 0, _path(trail))

    def _visit_tensor(self, stop: _Stop, queue: deque[_Stop]) -> Iterator[TorchReference]:
        value: Any
        value, trail, _ = stop
        if id(value) in self.visible:
            yield TorchReference(value, 0, _path(trail))
            return
        if is_symbolic(value):
            return
        key = self.targets.stored_key(value)
        if key:
            yield TorchReference(value, key, _path(trail))
        if id(value) not in self._alive and not is_bare(value):
            self._alive[id(value)] = value
            queue.append(stop)


_Hop = tuple[object, LinkKind, str, str]


def _readable(hops: Iterator[_Hop]) -> Iterator[_Hop]:
    """The hops up to one that raises: one strange object ends no search."""
    try:
        yield from hops
    except guarded_errors():  # a subclass may raise anything
        return


def _tensor_hops(tensor: torch.Tensor) -> Iterator[_Hop]:
    name = type(tensor).__name__
    if tensor._is_view():
        yield tensor._base, LinkKind.BASE, "", name
    gradient = gradient_of(tensor)
    if gradient is not None:
        yield gradient, LinkKind.GRAD, "grad", name
    hooks = getattr(tensor, "_post_accumulate_grad_hooks", None)
    if hooks is not None:
        yield hooks, LinkKind.HOOK, "post-accumulate-grad hook", name
    node = grad_fn_of(tensor)
    if node is not None:
        yield node, LinkKind.AUTOGRAD_NODE, type(node).__name__, name
    inner = unwrapped(tensor)
    if inner is not None:
        yield from _tensor_hops(inner)


def _node_hops(node: torch.autograd.graph.Node) -> Iterator[_Hop]:
    owner = type(node).__name__
    for raw_name in _saved_names(type(node)):
        for position, saved in _saved_of(node, raw_name):
            yield from _saved_hops(saved, raw_name[len("_raw_saved_") :] + position, owner)
    if "variable" in type(node).__dict__:
        yield node.variable, LinkKind.SAVED_TENSOR, "variable", owner  # type: ignore[attr-defined]
    for following, _ in node.next_functions:
        if following is not None:
            yield following, LinkKind.AUTOGRAD_NODE, type(following).__name__, owner


def _saved_names(kind: type) -> tuple[str, ...]:
    if not _CAN_READ_SAVED:
        return ()
    if issubclass(kind, torch._C._FunctionBase):
        return ("_raw_saved_tensors",)  # the user's classes are not remembered: it would keep them
    return _names_of_cpp_node(kind)  # type: ignore[arg-type] # a class is hashable


@lru_cache(maxsize=1024)
def _names_of_cpp_node(kind: type) -> tuple[str, ...]:
    return tuple(name for name in kind.__dict__ if name.startswith("_raw_saved_"))


def _saved_of(node: object, raw_name: str) -> list[tuple[str, object]]:
    try:
        raw = getattr(node, raw_name)
    except RuntimeError:  # released by backward
        return []
    if type(raw) is tuple or type(raw) is list:
        return [(f"[{i}]", one) for i, one in enumerate(raw)]
    return [("", raw)]


def _saved_hops(saved: object, name: str, owner: str) -> Iterator[_Hop]:
    if saved is None:
        return
    try:
        data, hook = saved.data, saved.unpack_hook  # type: ignore[attr-defined]
    except RuntimeError:  # hooks written in C++ show nothing
        return
    if data is not None:
        yield data, LinkKind.SAVED_TENSOR, name, owner
    if hook is not None:
        yield hook, LinkKind.HOOK, "unpack hook", owner


def _path(trail: _Trail | None) -> tuple[Link, ...]:
    """The hops of a trail, nodes that follow one another joined into one link."""
    links: list[Link] = []
    nodes: list[str] = []
    hops: list[_Trail] = []
    while trail is not None:
        hops.append(trail)
        trail = trail.before
    for hop in reversed(hops):
        if hop.kind is LinkKind.AUTOGRAD_NODE:
            nodes.append(hop.name)
            continue
        if nodes:
            links.append(Link(LinkKind.AUTOGRAD_NODE, nodes=_runs(nodes)))
            nodes = []
        links.append(Link(hop.kind, hop.name, hop.type_name))
    if nodes:
        links.append(Link(LinkKind.AUTOGRAD_NODE, nodes=_runs(nodes)))
    return tuple(links)


def _runs(nodes: list[str]) -> tuple[tuple[str, int], ...]:
    """Return node names with how many follow one another, the middle of a long chain left out."""
    return _shortened([(name, len(list(same))) for name, same in groupby(nodes)])


def _shortened(runs: list[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    if len(runs) > _MOST_RUNS:
        omitted = sum(count if not name else 1 for name, count in runs[3:-2])
        runs = [*runs[:3], ("", omitted), *runs[-2:]]
    return tuple(runs)


def through_graph(path: Sequence[Link]) -> list[Link]:
    """A way through a graph as one link: what a node saved was made by the node after it."""
    links: list[Link] = []
    for link in path:
        if link.kind is not LinkKind.AUTOGRAD_NODE or len(links) < 2:
            links.append(link)
            continue
        graph, saved = links[-2:]
        if saved.kind is LinkKind.SAVED_TENSOR and graph.kind is LinkKind.AUTOGRAD_NODE:
            links[-2:] = [
                Link(LinkKind.AUTOGRAD_NODE, nodes=_shortened([*graph.nodes, *link.nodes]))
            ]
        else:
            links.append(link)
    return links
