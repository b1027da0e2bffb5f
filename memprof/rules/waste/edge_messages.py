"""edge-messages: a graph layer makes a message for each edge, where a sparse product would do."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.large_tensor import large_tensor
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import Program, source_of
from memprof.trace import Frame
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]

_PROPAGATES = "propagate"
"""The method of PyG's `MessagePassing` that makes messages; it is generated for each layer."""
_OF_LAYERS = "/torch_geometric/nn/conv/"
_FUSES = "message_and_aggregate"
"""The method that a layer computes both at once with, given a sparse matrix for the edges."""


@dataclass(frozen=True, slots=True, eq=False)
class Messages(Match):
    """The layer that makes them."""

    layer: str = ""


class EdgeMessages(WasteRule[Messages]):
    """`GCNConv(...)(x, edge_index)`: edges times channels, summed for each node."""

    name = "edge-messages"
    summary = "a graph layer makes a message for each edge, where a sparse product would do"
    fixes = ("sparse_adjacency",)

    def matches(self, window: Window) -> Iterator[Messages]:
        """The large tensor of the peak, made by a layer that can do without."""
        large = large_tensor(window)
        layer = _fusing_layer(window.stack(large.row)) if large is not None else ""
        if large is None or not layer:
            return
        yield Messages(
            row=large.row,
            rows=large.there,
            nbytes=large.nbytes,
            saving=window.replayed(window.whole(np.flatnonzero(large.in_every_step))),
            layer=layer,
        )

    def title(self, match: Messages) -> str:
        """Say whose they are."""
        return f"are messages of `{match.layer}`, one for each edge"

    def advice(self, match: Messages, case: Case) -> Iterator[Advice]:
        """Give the edges as a sparse matrix."""
        why = (
            f"{format_bytes(match.nbytes)} of messages are made and then added up for each node. "
            f"`{match.layer}` multiplies by a sparse matrix instead where it is given one: "
            "`data = T.ToSparseTensor()(data)`, and `data.adj_t` for `data.edge_index`."
        )
        yield Advice("sparse_adjacency", why, case.site)


def _fusing_layer(stack: Sequence[Frame]) -> str:
    """The class of the layer that makes messages on a stack, innermost first; empty for none.

    Empty as well where it cannot compute them and their sums at once, as attention cannot.
    """
    propagates = [at for at, frame in enumerate(stack) if frame.name.endswith(_PROPAGATES)]
    for frame in stack[propagates[-1] + 1 :] if propagates else ():
        if _OF_LAYERS in frame.filename.replace("\\", "/"):
            layer, _, method = frame.name.rpartition(".")
            program = source_of(frame.filename) if method == "forward" else None
            return layer if program is not None and _fuses(program, layer) else ""
    return ""


def _fuses(program: Program, layer: str) -> bool:
    """Whether a class of a file has the method itself: each layer computes something else."""
    return any(
        isinstance(node, ast.FunctionDef) and node.name == _FUSES
        for one in program.classes()
        if one.name == layer
        for node in one.body
    )


RULE = EdgeMessages()
