"""What operators read of results that outlive calls of models: all, or what they reduce it to."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from typing import Any

from memprof.records import KeptResults
from memprof.sources.cpu.live_storages import StorageReference
from memprof.trace import EMPTY, Category

__all__ = ["KeptResultsWatch"]

_LEAST_BYTES = 64 << 10
"""Smaller results are no reason to change a program, and there are many."""
_CALLS = 3
"""Outermost calls of modules after its own that a result is there for: a step's own are gone."""
_MOST_NODES = 4096
"""Results that are followed at once, with what is computed of them, …"""
_MOST_FRESH = 4096
"""… and new ones since a model was called."""
_MOST_BELOW = 64
"""Results that are followed of one: what is read again and again is no result that waits."""
_MOST_READERS = 4
"""Stacks that are noted of those that reduce one result, …"""
_MOST_STACKS = 8
"""… and in all, of those that one line made."""
_HALF = 0.5
"""Of the values: an operator that returns fewer has reduced what it was given."""
_LEVELS = 32
"""Of results that are computed of one another, that are followed."""

_OWNED = frozenset(
    (Category.PARAMETER, Category.BUFFER, Category.GRADIENT, Category.OPTIMIZER_STATE)
)

_REDUCING = frozenset(
    (
        *("_local_scalar_dense", "all", "amax", "amin", "aminmax", "any", "argmax", "argmin"),
        *("binary_cross_entropy", "bincount", "count_nonzero", "cross_entropy_loss", "equal"),
        *("histc", "item", "nll_loss", "nll_loss_nd"),
        *("l1_loss", "linalg_vector_norm", "logsumexp", "max", "mean", "median", "min"),
        *("mse_loss", "nll_loss2d_forward", "nll_loss_forward", "norm", "prod", "smooth_l1_loss"),
        *("std", "std_mean", "sum", "topk", "unique_dim", "var", "var_mean"),
    )
)
"""Operators that compute little of all that they are given."""
_PASSING_ON = frozenset(
    (
        *("_log_softmax", "_softmax", "_to_copy", "clone", "constant_pad_nd", "contiguous"),
        *("cumsum", "flatten", "log_softmax", "reshape", "softmax", "sort", "to", "type_as"),
    )
)
"""Operators that are not pointwise and whose results have what they were given, value by value.

In `torch.inference_mode` a mode is shown those, too, that are made up of others elsewhere."""
_JOINING = frozenset(("cat", "stack"))
_COPYING, _PICKING = "copy_", "gather"


class _Kind(IntEnum):
    """What an operator does with what it is given."""

    NEEDING, REDUCING, PASSING_ON, JOINING, COPYING, PICKING, WRITING = range(7)


class _Node:
    """A result that is kept, or what was computed of one."""

    __slots__ = (
        "below", "is_needed", "is_one_of_many", "level", "readers", "reads", "reduced", "reference",
        "since", "values"
    )  # fmt: skip

    def __init__(self, reference: StorageReference, values: int, above: _Node | None) -> None:
        self.reference = reference
        self.values = values
        self.level: int = above.level + 1 if above is not None else 0
        self.since: int = above.since if above is not None else reference.serial
        """The serial of the result that is kept: what has a later one was made later."""
        self.below: list[_Node] = []
        """What was computed of it with as many values."""
        self.reduced = 0.0
        """Bytes of what was computed of it with fewer."""
        self.reads = 0
        """By operators that reduced it."""
        self.is_needed = False
        """An operator was given it that needs all of it, or it outlived calls itself."""
        self.readers: list[int] = []
        """Stacks of what reduced it."""
        self.is_one_of_many = False
        """Its line made others before the next call: the first of them may wait for none."""

    @property
    def is_over(self) -> bool:
        """Whether it has died, and all that was computed of it."""
        return self.reference() is None and all(one.is_over for one in self.below)


class KeptResultsWatch:
    """Told of calls of models and, once a result has outlived some, of every operator.

    A result that operators reduce can be reduced before it is kept. Not where it is compared with
    what was made later, where rows of it are selected, or where it is multiplied with something:
    all of it may be needed then.
    """

    def __init__(
        self, references: Mapping[int, StorageReference], capture: Callable[[Any], int]
    ) -> None:
        """``references`` are the known storages by their ``_cdata``.

        ``capture`` gives the number of the stack that begins with a frame.
        """
        self._references, self._capture = references, capture
        self.nodes: dict[int, _Node] = {}
        """By ``_cdata``: what `see` is to be told of; nobody has to where it is empty."""
        self.fresh: list[StorageReference] = []
        """Results since the last call of a model; to be added to by `add`."""
        self._kept: list[_Node] = []
        self._young: deque[list[StorageReference]] = deque()
        self._kinds: dict[Any, _Kind] = {}

    def add(self, reference: StorageReference) -> None:
        """A result is new."""
        if reference.size >= _LEAST_BYTES and len(self.fresh) < _MOST_FRESH:
            self.fresh.append(reference)

    def call_begins(self) -> None:
        """A model is called from outside all others."""
        self._young.append(self.fresh)
        self.fresh = []
        if len(self._young) <= _CALLS:
            return
        fresh = [one for one in self._young.popleft() if one() is not None]
        made = Counter((one.stack, one.size) for one in fresh)
        for reference in fresh:
            if reference.category in _OWNED:
                continue
            known = self._node_of(reference.key)
            if known is not None:
                self._need(known)  # what was computed of a kept result is kept as well
            elif len(self.nodes) < _MOST_NODES:
                node = self.nodes[reference.key] = _Node(reference, 0, None)
                node.is_one_of_many = made[reference.stack, reference.size] > 1
                self._kept.append(node)

    def clear(self) -> None:
        """Forget all: an operator was missed, say."""
        self.nodes.clear()
        self._kept.clear()
        self._young.clear()
        self.fresh.clear()

    def _node_of(self, key: int) -> _Node | None:
        node = self.nodes.get(key)
        if node is not None and node.reference() is None:
            self.nodes.pop(key, None)  # another storage has its key by now
            return None
        return node

    def _need(self, node: _Node) -> None:
        """All of it is needed: no more is to be learned."""
        node.is_needed = True
        node.below.clear()
        self.nodes.pop(node.reference.key, None)

    def see(self, func: Any, args: Any, out: Any, frame: Any) -> None:
        """Note what an operator that ``frame`` called has computed of what is followed."""
        given = list(_tensors(args))
        nodes = [self._node_of(one.untyped_storage()._cdata) for one in given]
        if not any(nodes):
            return
        kind = self._kind_of(func)
        results = list(_tensors((out,)))
        if kind is _Kind.COPYING:
            results, given, nodes = given[:1], given[1:], nodes[1:]
        elif kind is _Kind.WRITING:
            for written in filter(None, nodes):
                self._need(written)
            return
        else:
            shared = {one.untyped_storage()._cdata for one in given}
            if results and all(one.untyped_storage()._cdata in shared for one in results):
                return  # a view has the same storage
        for tensor, node in zip(given, nodes, strict=True):
            if node is not None and not node.is_needed:
                node.values = max(node.values, tensor.numel())
                self._note(kind, tensor, node, given, results, frame)

    def _note(
        self,
        kind: _Kind,
        tensor: Any,
        node: _Node,
        given: list[Any],
        results: list[Any],
        frame: Any,
    ) -> None:
        if kind is _Kind.PICKING:
            index = given[-1]
            picks_one = index is not tensor and index.dim() and index.shape[-1] == 1
            kind = _Kind.REDUCING if picks_one else _Kind.NEEDING
        elif kind is not _Kind.JOINING and self._is_compared(node, tensor, given):
            kind = _Kind.NEEDING
        most = max((one.numel() for one in results), default=0)
        if kind is _Kind.NEEDING:
            self._need(node)
        elif kind is _Kind.REDUCING and most < _HALF * tensor.numel():
            node.reads += 1
            node.reduced += sum(one.numel() * one.element_size() for one in results)
            if len(node.readers) < _MOST_READERS:
                stack = self._capture(frame)
                node.readers += [stack] if stack not in node.readers else []
        else:
            for one in results:
                if one.numel() >= _HALF * tensor.numel():
                    self._follow(node, one)

    def _follow(self, node: _Node, result: Any) -> None:
        key = result.untyped_storage()._cdata
        below, reference = self._node_of(key), self._references.get(key)
        has_room = len(self.nodes) < _MOST_NODES and len(node.below) < _MOST_BELOW
        if below is None and reference is not None and has_room and node.level < _LEVELS:
            below = self.nodes[key] = _Node(reference, result.numel(), node)
        if below is None or (below.level <= node.level and below is not node):
            self._need(node)  # what is computed of it is not followed
        elif below is not node and all(one is not below for one in node.below):
            below.since = min(below.since, node.since)
            node.below.append(below)

    def _is_compared(self, node: _Node, tensor: Any, given: list[Any]) -> bool:
        """Whether an operator is given something else that is as large and was made later."""
        for other in given:
            key = other.untyped_storage()._cdata
            if other is tensor or key in self.nodes or other.numel() < _HALF * tensor.numel():
                continue
            reference = self._references.get(key)
            if reference is None or reference.serial > node.since:
                return True
        return False

    def _kind_of(self, func: Any) -> _Kind:
        kind = self._kinds.get(func)
        if kind is None:
            kind = self._kinds[func] = _kind(func)
        return kind

    def take(self, device: str) -> list[KeptResults]:
        """What has been learned of the results that have died since the last call."""
        over = [node for node in self._kept if node.is_over]
        self._kept = [node for node in self._kept if not node.is_over]
        for key in list(self.nodes):
            self._node_of(key)
        rows: dict[tuple[int, int], _Row] = {}
        for node in over:
            row = rows.setdefault((node.reference.stack, node.reference.size), _Row())
            row.add(node)
        if not rows:
            return []
        return [
            KeptResults(
                device,
                stack=[stack for stack, _ in rows],
                size=[size for _, size in rows],
                count=[row.count for row in rows.values()],
                needed=[row.needed for row in rows.values()],
                unread=[row.unread for row in rows.values()],
                reduced=[round(row.reduced) for row in rows.values()],
                readers=[row.readers[:_MOST_STACKS] for row in rows.values()],
                computed=[row.computed[:_MOST_STACKS] for row in rows.values()],
            )
        ]


class _Row:
    """Results of one stack and size."""

    def __init__(self) -> None:
        self.count = self.needed = self.unread = 0
        self.reduced = 0.0
        self.readers: list[int] = []
        self.computed: list[int] = []

    def add(self, node: _Node) -> None:
        """One more, which is over."""
        self.count += 1
        reads, waiting = 0, [(node, 1.0)]
        is_needed = node.is_one_of_many and not node.reads and not node.below
        while waiting:
            one, share = waiting.pop()
            is_needed |= one.is_needed
            reads += one.reads
            self.reduced += share * one.reduced
            self.readers += [stack for stack in one.readers if stack not in self.readers]
            stack = one.reference.stack
            if one is not node and stack not in self.computed and stack != EMPTY:
                self.computed.append(stack)
            waiting += [(b, share * min(1.0, one.values / max(1, b.values))) for b in one.below]
        self.needed += is_needed
        self.unread += not is_needed and not reads


def _kind(func: Any) -> _Kind:
    import torch

    name = func._schema.name.rpartition("::")[2]
    if name == _COPYING:
        return _Kind.COPYING
    if func._schema.is_mutable:
        return _Kind.WRITING
    if name == _PICKING:
        return _Kind.PICKING
    if name in _REDUCING:
        return _Kind.REDUCING
    if name in _JOINING:
        return _Kind.JOINING
    is_pointwise = torch.Tag.pointwise in getattr(func, "tags", ())
    return _Kind.PASSING_ON if is_pointwise or name in _PASSING_ON else _Kind.NEEDING


def _tensors(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _tensors(value)
        elif hasattr(value, "untyped_storage"):
            yield value
