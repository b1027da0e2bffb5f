"""What operators read of results that outlive calls of models: all, or what they reduce it to."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from types import CodeType
from typing import Any

from memprof.records import KeptResults
from memprof.sources.cpu.live_storages import StorageReference
from memprof.sources.operator_schema import is_mutable, schema_name
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
_MOST_PASSES = 8
"""Times that one line comes back to a result after others: a search over all of them goes on."""
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
_ORDERING = frozenset(("median", "std", "std_mean", "topk", "unique_dim", "var", "var_mean"))
"""Those of them that give no number of several results which the numbers of each would tell."""
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

    NEEDING, REDUCING, ORDERING, PASSING_ON, JOINING, COPYING, PICKING, WRITING = range(8)


_OF_LESS = (_Kind.REDUCING, _Kind.ORDERING)


class _Node:
    """A result that is kept, or what was computed of one."""

    __slots__ = (
        "below", "call", "is_joined", "is_needed", "is_one_of_many", "level", "passes", "readers",
        "reads", "reduced", "reference", "since", "values"
    )  # fmt: skip

    def __init__(self, reference: StorageReference, values: int, call: int) -> None:
        self.reference = reference
        self.values = values
        self.level = 0
        """Results that it was computed of, one of the other."""
        self.call = call
        """The call of a model by which the result that is kept was there, …"""
        self.since: int = reference.serial
        """… and its serial: of those that were joined the first one's."""
        self.below: list[_Node] = []
        """What was computed of it with as many values."""
        self.reduced = 0.0
        """Bytes of what was computed of it with fewer."""
        self.reads = 0
        """By operators that reduced it."""
        self.is_needed = False
        """An operator was given it that needs all of it, or it outlived calls itself."""
        self.is_joined = False
        """Several are in it, one after the other along the first dimension."""
        self.readers: list[int] = []
        """Stacks of what reduced it."""
        self.passes: Counter[tuple[CodeType, int]] = Counter()
        """By lines: how often one read it after it had read another result."""
        self.is_one_of_many = False
        """Its line made others before the next call: the first of them may wait for none."""

    def with_all_below(self) -> Iterator[tuple[_Node, float]]:
        """It and all that was computed of it, each once, with its share of that: 1 and less."""
        known, waiting = {id(self)}, [(self, 1.0)]
        while waiting:
            one, share = waiting.pop()
            yield one, share
            for below in one.below:
                if id(below) not in known:
                    known.add(id(below))
                    waiting.append((below, share * min(1.0, one.values / max(1, below.values))))

    @property
    def is_over(self) -> bool:
        """Whether it has died, and all that was computed of it."""
        return all(one.reference() is None for one, _ in self.with_all_below())


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
        self._calls = 0
        self._kinds: dict[Any, _Kind] = {}
        self._read_last: dict[tuple[CodeType, int], _Node] = {}

    def add(self, reference: StorageReference) -> None:
        """A result is new."""
        if reference.size >= _LEAST_BYTES and len(self.fresh) < _MOST_FRESH:
            self.fresh.append(reference)

    def call_begins(self) -> None:
        """A model is called from outside all others."""
        self._calls += 1
        self._young.append(self.fresh)
        self.fresh = []
        if len(self._young) <= _CALLS:
            return
        fresh = [one for one in self._young.popleft() if one() is not None]
        made = Counter((one.stack, one.size) for one in fresh)
        for reference in fresh:
            if reference.category in _OWNED:
                continue
            # What was computed of a kept result is followed already, kept as well or not.
            if self._node_of(reference.key) is None and len(self.nodes) < _MOST_NODES:
                node = self.nodes[reference.key] = _Node(reference, 0, self._calls)
                node.is_one_of_many = made[reference.stack, reference.size] > 1
                self._kept.append(node)

    def clear(self) -> None:
        """Forget all: an operator was missed, say."""
        self.nodes.clear()
        self._kept.clear()
        self._young.clear()
        self.fresh.clear()
        self._read_last.clear()

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

    def see(self, func: Any, given: Any, out: Any, frame: Any) -> None:
        """Note what an operator that ``frame`` called has computed of what is followed.

        ``given`` has its arguments, in sequences within one another.
        """
        given = list(_tensors(given))
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
                if not node.level and self._is_searched(node, frame):
                    self._need(node)
                    continue
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
        elif kind is _Kind.JOINING:
            kind = kind if _is_joined_first(given, results) else _Kind.NEEDING
        elif self._is_compared(node, tensor, given):
            kind = _Kind.NEEDING
        most = max((one.numel() for one in results), default=0)
        if kind is _Kind.NEEDING:
            self._need(node)
        elif kind in _OF_LESS and most < _HALF * tensor.numel():
            may_add_up = kind is _Kind.REDUCING
            if node.is_joined and not _is_of_each(tensor, results, may_add_up=may_add_up):
                self._need(node)
                return
            node.reads += 1
            node.reduced += sum(one.numel() * one.element_size() for one in results)
            if len(node.readers) < _MOST_READERS:
                stack = self._capture(frame)
                node.readers += [stack] if stack not in node.readers else []
        else:
            for one in results:
                if one.numel() >= _HALF * tensor.numel():
                    self._follow(node, one, is_joined=kind is _Kind.JOINING)

    def _is_searched(self, node: _Node, frame: Any) -> bool:
        """Whether a line goes through results again and again, as one that tries values for them.

        A line that reads one result for each class, say, and then the next, goes through them once.
        """
        line = frame.f_code, frame.f_lineno
        if self._read_last.get(line) is not node:
            self._read_last[line] = node
            node.passes[line] += 1
        return node.passes[line] > _MOST_PASSES

    def _follow(self, node: _Node, result: Any, *, is_joined: bool) -> None:
        key = result.untyped_storage()._cdata
        below, reference = self._node_of(key), self._references.get(key)
        has_room = len(self.nodes) < _MOST_NODES and len(node.below) < _MOST_BELOW
        if below is None and reference is not None and has_room and node.level < _LEVELS:
            below = self.nodes[key] = _Node(reference, result.numel(), node.call)
            below.since, below.level = node.since, node.level + 1
        if below is None:
            self._need(node)  # what is computed of it is not followed
        elif below is not node and all(one is not below for one in node.below):
            below.since, below.call = min(below.since, node.since), min(below.call, node.call)
            below.is_joined |= is_joined or node.is_joined
            node.below.append(below)

    def _is_compared(self, node: _Node, tensor: Any, given: list[Any]) -> bool:
        """Whether an operator is given something else that is as large and was made later.

        What a later call's results are compared with has to wait for them.
        """
        for other in given:
            key = other.untyped_storage()._cdata
            if other is tensor or other.numel() < _HALF * tensor.numel():
                continue
            known, reference = self._node_of(key), self._references.get(key)
            if known is not None:
                is_later = known.call > node.call
            else:
                is_later = reference is None or reference.serial > node.since
            if is_later:
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
        reads = 0
        is_needed = node.is_one_of_many and not node.reads and not node.below
        for one, share in node.with_all_below():
            is_needed |= one.is_needed
            reads += one.reads
            self.reduced += share * one.reduced
            self.readers += [stack for stack in one.readers if stack not in self.readers]
            stack = one.reference.stack
            if one is not node and stack not in self.computed and stack != EMPTY:
                self.computed.append(stack)
        self.needed += is_needed
        self.unread += not is_needed and not reads


def _is_joined_first(given: list[Any], results: list[Any]) -> bool:
    """Whether tensors were joined along the first dimension, or a new one before it."""
    (joined,) = results
    if joined.dim() > given[0].dim():
        return bool(joined.shape[0] == len(given))
    return bool(joined.dim()) and joined.shape[0] == sum(one.shape[0] for one in given if one.dim())


def _is_of_each(tensor: Any, results: list[Any], *, may_add_up: bool) -> bool:
    """Whether what joined results are reduced to tells each of them apart, or adds them up.

    A median over several needs all of them at once; their mean value by value is a running total,
    which the rule `reduced-later` tells by the source.
    """
    return all(
        (may_add_up and one.numel() == 1)
        or (one.dim() > 0 and one.numel() > 1 and one.shape[0] == tensor.shape[0])
        for one in results
    )


def _kind(func: Any) -> _Kind:
    import torch

    name = schema_name(func).rpartition("::")[2]
    if name == _COPYING:
        return _Kind.COPYING
    if is_mutable(func):
        return _Kind.WRITING
    if name == _PICKING:
        return _Kind.PICKING
    if name in _REDUCING:
        return _Kind.ORDERING if name in _ORDERING else _Kind.REDUCING
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
