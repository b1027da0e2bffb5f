"""The line of the forward pass that each allocation of a backward pass comes of, by graph nodes."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from memprof.sources.loop.thread_state import BackwardPass, ThreadPosition
from memprof.sources.operator_schema import schema_name
from memprof.trace import EMPTY, NOT_RECORDED

__all__ = ["OperatorOrigins"]

_PARTS = (
    "as_strided.default",
    "diagonal.default",
    "select.int",
    "slice.Tensor",
    "split.Tensor",
    "split_with_sizes.default",
    "unbind.int",
    "unfold.default",
)
"""Views of a part, whose backward passes allocate the whole."""
MOST_NODES = 1 << 15
"""Nodes of a generation; two are kept, and a graph that is older says nothing of its lines."""


class OperatorOrigins:
    """The stacks that called operators with gradients, by the numbers of their nodes.

    Autograd makes the node of an operator just before the operator allocates, and numbers the nodes
    of a thread. Not every allocation has a node of its own: what needs no gradient follows the node
    of another operator. So an input has to need one, and the node that runs must be named after the
    operator. Numbers are a thread's: where a second one makes graphs, nothing is said any more.
    """

    def __init__(self) -> None:
        import torch

        private = torch._C
        sequence = getattr(getattr(private, "_autograd", None), "_get_sequence_nr", None)
        node = getattr(private, "_current_autograd_node", None)
        self._is_usable = sequence is not None and node is not None
        self._sequence: Any = sequence
        self._current_node: Any = node
        self._grad_enabled = torch.is_grad_enabled
        self._tensor = torch.Tensor
        self._latest: dict[int, tuple[int, Any]] = {}
        self._older: dict[int, tuple[int, Any]] = {}
        self._last_made = NOT_RECORDED
        self._last_run, self._origin = NOT_RECORDED, EMPTY
        self.parts = frozenset(id(_overload(torch, name)) for name in _PARTS)
        """The ``id`` of each operator that allocates nothing and whose backward pass does."""

    def start(self) -> None:
        """Forget the nodes that are known: others were made unseen since."""
        self._latest, self._older = {}, {}
        self._last_made = self._last_run = NOT_RECORDED
        self._origin = EMPTY

    def of(
        self, place: ThreadPosition, frame: Any, stack: int, operator: Any, arguments: Any
    ) -> int:
        """Row of the stack that an allocation in a backward pass comes of; EMPTY elsewhere.

        ``frame`` and ``stack`` are those of the allocation, which an ``operator`` made of its
        ``arguments``. Only for the thread of the training loop.
        """
        if not self._is_usable:
            return EMPTY
        origin, caller = EMPTY, stack
        # Hooks, backward passes in Python and recomputations have frames, and so lines, of their
        # own. What makes a graph without them comes of the line that the graph comes of.
        if type(place) is BackwardPass and place.frame_id == (0 if frame is None else id(frame)):
            origin = caller = self._of_node(place.running)
        if caller and self.is_in_graph(arguments):
            self._last_made = number = self._sequence() - 1
            if len(self._latest) >= MOST_NODES:
                self._older, self._latest = self._latest, {}
            self._latest[number] = caller, operator
        return origin

    def is_in_graph(self, arguments: Any) -> bool:
        """Whether an operator may have made a node, of which nothing is known yet."""
        return (
            self._is_usable
            and self._sequence() - 1 != self._last_made
            and self._grad_enabled()
            and self._needs_gradient(arguments)
        )

    def note_other_thread(self, arguments: Any) -> None:
        """Another thread has run an operator: if it makes a graph, its numbers mean other nodes."""
        if self._is_usable and self._grad_enabled() and self._needs_gradient(arguments):
            self._is_usable = False

    def _of_node(self, number: int) -> int:
        if number == self._last_run:
            return self._origin
        self._last_run, self._origin = number, EMPTY
        entry = self._latest.get(number) or self._older.get(number)
        node = self._current_node() if entry is not None else None
        if entry is not None and node is not None:
            caller, operator = entry
            name, digits = _without_digits(node.name())
            if digits and name == _node_name(operator):
                self._origin = caller
        return self._origin

    def _needs_gradient(self, arguments: Any) -> bool:
        tensor = self._tensor
        for one in arguments:
            if isinstance(one, tensor):
                if one.requires_grad:
                    return True
            elif isinstance(one, (list, tuple)) and any(
                isinstance(part, tensor) and part.requires_grad for part in one
            ):
                return True
        return False


def _overload(torch: Any, name: str) -> Any:
    operator, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, operator), overload)


def _without_digits(name: str) -> tuple[str, str]:
    stem = name.rstrip("0123456789")
    return stem, name[len(stem) :]


@lru_cache(maxsize=4096)
def _node_name(operator: Any) -> str:
    """How torch names the nodes of an operator, without their number: ``NllLossBackward``.

    See ``_create_op_prefix`` in tools/autograd/load_derivatives.py.
    """
    name = schema_name(operator).rpartition("::")[2]
    camel_case = "".join(part.title() for part in name.split("_"))
    return f"{camel_case}Backward".replace("ForwardBackward", "Backward")
