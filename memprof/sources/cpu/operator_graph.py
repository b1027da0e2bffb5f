"""Of what operators make large tensors, and what later operators make of these."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from memprof.records import OperatorGraph
from memprof.sources.cpu.live_storages import LiveStorages, StorageReference, storage_of
from memprof.sources.loop.thread_state import NO_TASK
from memprof.sources.operator_schema import schema_name
from memprof.trace import EMPTY

__all__ = ["OperatorGraphWatch"]

_MOST = 2048
"""Stacks and operators that are noted in a run."""
_MOST_READS = 64
"""Of one of them; with more, nothing is said of it."""
_NO_KEYS = frozenset[int]()
_DEEPEST = 2
"""Sequences of tensors are among the arguments, and sequences in these."""


class _Read:
    """What one operator, called from one stack, was given of results and made of them."""

    __slots__ = ("count", "made", "read")  # a dataclass costs half a millisecond at the beginning

    def __init__(self) -> None:
        self.count = 0
        self.read = 0
        """Bytes of the result that it was given, the most of one call."""
        self.made = 0
        """Bytes of what it returned, the most of one call."""


class _Node:
    """The large results that one operator made, called from one stack."""

    __slots__ = ("count", "given", "is_lost", "is_told", "reads", "size")

    def __init__(self) -> None:
        self.size = 0
        """Bytes of the largest."""
        self.given = 0
        """Bytes of what the operator was given, the most of one call."""
        self.count = 0
        self.reads: dict[tuple[int, str], _Read] = {}
        """By the stack of what was made, and the operator."""
        self.is_lost = False
        """An operator that may have been given one was missed."""
        self.is_told = False
        """Since something was added."""


class OperatorGraphWatch:
    """Told of large storages as they are made, and of every operator that is given one.

    What a backward pass computes is left out: it follows from what is computed forward.
    """

    def __init__(self, live: LiveStorages) -> None:
        """``live`` are the storages that are known."""
        self._live = live
        self._nodes: dict[tuple[int, str], _Node] = {}
        self._operators: dict[Any, str] = {}
        """Names; those that return views have none."""
        self._task: Callable[[], int] | None = None

    def begin(self) -> None:
        """Ask torch by what a backward pass is known."""
        import torch

        self._task = getattr(torch._C, "_current_graph_task_id", None)

    def add(self, new: StorageReference, func: Any, args: Any) -> None:
        """Follow a storage that an operator has made of its ``args``."""
        if self._is_backward():
            return
        key = new.stack, self._name(func)
        node = self._nodes.get(key)
        if node is None:
            if len(self._nodes) >= _MOST:
                return
            node = self._nodes[key] = _Node()
        if new.size > node.size:  # of smaller ones nothing more is to be known
            node.size = new.size
            node.given = max(node.given, _given(args, new))
        node.count += 1
        node.is_told = False
        new.node = key

    def see(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """An operator was given a storage that is followed, and has returned ``out``.

        Raises what torch does where one of them has no storage: then `lose` is to be called.
        """
        name = self._operators.get(func)
        if name is None:
            name = self._name(func)
        if not name or (self._task is not None and self._task() != NO_TASK):
            return
        references, nodes = self._live.references, self._nodes
        others: Collection[int]
        if hasattr(out, "untyped_storage"):  # as nearly all: no calls but those that it needs
            own, others = out.untyped_storage()._cdata, _NO_KEYS
            reference = references.get(own)
            made = (EMPTY, name) if reference is None else reference.node or (reference.stack, name)
            nbytes = out.numel() * out.element_size()
        else:
            own, others, made, nbytes = self._made(name, out)
        for value in (*args, *kwargs.values()) if kwargs else args:
            is_one = hasattr(value, "untyped_storage")
            if not (is_one or isinstance(value, (list, tuple))):
                continue
            for tensor in (value,) if is_one else _tensors(value):
                key = tensor.untyped_storage()._cdata
                reference = references.get(key)
                # What it writes into is not read, nor what ``_unsafe_view`` shows.
                if reference is None or reference.node is None or key == own or key in others:
                    continue
                node = nodes[reference.node]
                read = node.reads.get(made)
                if read is None:
                    if len(node.reads) > _MOST_READS:
                        continue
                    read = node.reads[made] = _Read()
                shown = tensor.numel() * tensor.element_size()
                read.count += 1
                if shown > read.read or nbytes > read.made:
                    read.read, read.made = max(shown, read.read), max(nbytes, read.made)
                node.is_told = False

    def lose(self, references: Iterable[StorageReference]) -> None:
        """Say nothing of the nodes of some storages: an operator that may read them was missed."""
        for reference in references:
            is_alive = self._live.references.get(reference.key) is reference
            if is_alive and reference.node is not None:
                node = self._nodes[reference.node]
                node.is_lost, node.is_told = True, False

    def _made(self, name: str, out: Any) -> tuple[int, Collection[int], tuple[int, str], int]:
        """Of several that were returned the first one's storage, all, its node, and all bytes.

        What is written into is the node of what it was before; what is no tensor has no stack.
        """
        own, key, nbytes = list[int](), (EMPTY, name), 0
        for tensor in _tensors((out,)):
            nbytes += tensor.numel() * tensor.element_size()
            own.append(tensor.untyped_storage()._cdata)
            reference = self._live.references.get(own[0])
            if len(own) == 1 and reference is not None:
                key = reference.node or (reference.stack, name)
        return own[0] if own else 0, own, key, nbytes

    def _name(self, func: Any) -> str:
        """Of an operator; empty of one that returns a view."""
        name = self._operators.get(func)
        if name is None:
            name = "" if getattr(func, "is_view", False) else schema_name(func)
            self._operators[func] = name
        return name

    def take(self, device: str) -> list[OperatorGraph]:
        """What has changed since the last call, each stack and operator as a whole."""
        changed = {key: node for key, node in self._nodes.items() if not node.is_told}
        if not changed:
            return []
        for node in changed.values():
            node.is_told = True
        return [
            OperatorGraph(
                device,
                [stack for stack, _ in changed],
                [operator for _, operator in changed],
                [node.size for node in changed.values()],
                [node.given for node in changed.values()],
                [node.count for node in changed.values()],
                [
                    [(*key, one.count, one.read, one.made) for key, one in node.reads.items()]
                    if len(node.reads) <= _MOST_READS and not node.is_lost
                    else []
                    for node in changed.values()
                ],
            )
        ]

    def _is_backward(self) -> bool:
        return self._task is not None and self._task() != NO_TASK


def _given(args: Any, new: StorageReference) -> int:
    """Bytes of the tensors among arguments, each storage once."""
    sizes: dict[int, int] = {}
    for tensor in _tensors(args):
        storage = storage_of(tensor)
        if storage is not None and storage._cdata != new.key:
            shown = min(storage.nbytes(), tensor.numel() * tensor.element_size())
            sizes[storage._cdata] = max(shown, sizes.get(storage._cdata, 0))
    return sum(sizes.values())


def _tensors(values: Any, depth: int = _DEEPEST) -> Iterator[Any]:
    """The tensors among values, and in sequences of them."""
    for value in values:
        if isinstance(value, (list, tuple)):
            if depth:
                yield from _tensors(value, depth - 1)
        elif hasattr(value, "untyped_storage"):
            yield value
