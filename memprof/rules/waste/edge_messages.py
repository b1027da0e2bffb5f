"""edge-messages: a graph layer makes a message for each edge, where a sparse product would do.

Or a layer of the program's own gathers features for each edge, and multiplies each by weights; or
the sums of them by weights that make them narrower.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from memprof.rules.case import Case
from memprof.rules.large_tensor import LargeTensor, large_tensor
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.edge_layers import LinearOfEdges, linear_of_edges, linear_of_sums
from memprof.source_code.idioms import keyword
from memprof.source_code.program import (
    Place,
    Program,
    arguments,
    called_name,
    calls_in,
    place_of,
    source_of,
)
from memprof.trace import Frame, Phase
from memprof.units import format_bytes
from memprof.views.stacks import made_at_lines
from memprof.views.window import Bools, Window

__all__ = ["RULE"]

_PROPAGATES = "propagate"
"""The method of PyG's `MessagePassing` that makes messages; it is generated for each layer."""
_OF_LAYERS = "/torch_geometric/nn/conv/"
_OF_PYG = "/torch_geometric/"
_AGGREGATES = ".aggr_module"
"""Of PyG's `MessagePassing`: the module that adds messages up."""
_BY_VALUE = frozenset(("elu", "gelu", "leaky_relu", "relu", "selu", "silu"))
"""Functions of torch with a frame of their own, of each value by itself."""
_NARROW = 0.5
"""Of the width, that a linear layer leaves at most where it is worth calling it first."""
_FUSES = "message_and_aggregate"
"""The method that a layer computes both at once with, given a sparse matrix for the edges."""


@dataclass(frozen=True, slots=True, eq=False)
class Messages(Match):
    """The layer that makes them, or the linear one that is given them."""

    layer: str = ""
    linear: LinearOfEdges | None = None
    narrowed: float = 0.0
    """What is left of the width after a linear layer that is given sums of them; 0: none is."""


class EdgeMessages(WasteRule[Messages]):
    """`GCNConv(...)(x, edge_index)`: edges times channels, summed for each node."""

    name = "edge-messages"
    summary = "a graph layer makes a message for each edge, where a sparse product would do"
    fixes = ("sparse_adjacency", "transform_nodes")
    other_operators = True

    def matches(self, window: Window) -> Iterator[Messages]:
        """The large tensor of the peak, made by a layer that can do without."""
        large = large_tensor(window)
        if large is None:
            return
        given = _given_to_linear(window, large)
        if given is not None:
            row, linear = given
            gathered = large.in_every_step & (window.site == window.site[row])
            gathered |= _by_functions_of(window, linear)
            there = np.flatnonzero(gathered & window.at_peak)
            yield Messages(
                row=row,
                rows=there,
                nbytes=int(window.lives.size[there].sum()),
                saving=window.replayed(window.whole(np.flatnonzero(gathered))),
                linear=linear,
            )
            return
        after = _linear_after_sums(window, large)
        if after is not None:
            linear, narrowed = after
            rows = np.flatnonzero(large.in_every_step)
            yield Messages(
                row=large.row,
                rows=large.there,
                nbytes=large.nbytes,
                saving=window.replayed(window.whole(rows)),
                linear=linear,
                narrowed=narrowed,
            )
            return
        layer = _fusing_layer(window.stack(large.row))
        if not layer or _adds_up_in_several_ways(window.programs, layer):
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
        if match.narrowed and match.linear is not None:
            return f"are rows for each edge, whose sums `{match.linear.layer}` then makes narrower"
        if match.linear is not None:
            return f"are features gathered for each edge, which `{match.linear.layer}` is given"
        return f"are messages of `{match.layer}`, one for each edge"

    def advice(self, match: Messages, case: Case) -> Iterator[Advice]:
        """Give the edges as a sparse matrix, or the layer the nodes."""
        if match.narrowed and match.linear is not None:
            linear = match.linear
            last = "before rows are gathered, and the sums are the same"
            if linear.scaled_by:
                last += f" (`{linear.scaled_by}` has one value for a row)"
            if linear.has_bias:
                last += ", but for its bias: add that to the sums"
            why = (
                f"{format_bytes(match.nbytes)} are as wide as `{linear.features}`, and "
                f"`{linear.layer}` makes their sums 1/{1 / match.narrowed:.0f} as wide. It is "
                f"linear: call it on `{linear.features}`, {last}."
            )
            yield Advice("transform_nodes", why, case.site, remains=match.narrowed)
            return
        if match.linear is not None:
            layer, features, at = match.linear.layer, match.linear.features, match.linear.place
            why = (
                f"{format_bytes(match.nbytes)} are rows of `{features}`, one for each edge, and "
                f"`{layer}` takes each row by itself: call it on `{features}` before `propagate`, "
                "so that what it makes is gathered."
            )
            place = case.place_at(at.program.filename, at.line)
            yield Advice("transform_nodes", why, place or case.site)
            return
        why = (
            f"{format_bytes(match.nbytes)} of messages are made and then added up for each node. "
            f"`{match.layer}` multiplies by a sparse matrix instead where it is given one: "
            "`data = T.ToSparseTensor()(data)`, and `data.adj_t` for `data.edge_index`."
        )
        yield Advice("sparse_adjacency", why, case.site)


def _given_to_linear(window: Window, large: LargeTensor) -> tuple[int, LinearOfEdges] | None:
    """A tensor as large that a linear layer is given, the first made, and that layer."""
    rows = np.flatnonzero(large.alike & window.at_peak)
    _, firsts = np.unique(window.lives.stack[rows], return_index=True)
    for row in (large.row, *sorted(rows[firsts].tolist())):
        linear = _linear_after(window, row)
        if linear is not None:
            return row, linear
    return None


def _by_functions_of(window: Window, linear: LinearOfEdges) -> Bools:
    """What functions make value by value of the layer's result alone: ``F.relu(self.lin(x_j))``.

    They go before the rows are gathered, with the layer.
    """
    place = linear.place
    names = [
        called_name(call)
        for call in calls_in(place.statement, *_BY_VALUE)
        if any(
            isinstance(one, ast.Call) and ast.unparse(one.func) == linear.layer
            for one in arguments(call)
        )
    ]
    lines = range(place.line, (place.statement.end_lineno or place.line) + 1)
    stacks = np.unique(window.lives.stack).tolist() if names else []
    own = [row for row in stacks if _is_called_at(window.trace.stack(row), names[0], place, lines)]
    made: Bools = np.isin(window.lives.stack, own)
    return made


def _is_called_at(stack: Sequence[Frame], name: str, place: Place, lines: range) -> bool:
    """Whether a function of torch of that name, which a line calls, made what the stack is of."""
    for inner, outer in pairwise(stack):
        if outer.filename == place.program.filename and outer.line in lines:
            return inner.name.rpartition(".")[2] == name
    return False


def _linear_after(window: Window, row: int) -> LinearOfEdges | None:
    """The linear layer that is given features which PyG gathered for a layer of the program's.

    It makes no more for each edge, in the same step.
    """
    stack = window.stack(row)
    ends = [at for at, frame in enumerate(stack) if frame.name.endswith(_PROPAGATES)]
    inside, outside = (stack[: ends[0] + 1], stack[ends[0] + 1 :]) if ends else ((), ())
    of_pyg = any(_OF_PYG in frame.filename.replace("\\", "/") for frame in inside)
    place = next((one for one in map(place_of, outside) if one is not None), None)
    linear = linear_of_edges(place) if of_pyg and place is not None else None
    if linear is None or any(one.filename == linear.place.program.filename for one in inside):
        return None
    lives, filename = window.lives, linear.place.program.filename
    later = made_at_lines(window, filename, linear.place.lines)
    later &= lives.alloc > lives.alloc[row]
    later &= window.made_in == window.made_in[row]
    after = np.flatnonzero(later & (window.phase == window.phase[row]))
    is_no_wider = len(after) and lives.requested[after[0]] <= lives.requested[row]
    return linear if is_no_wider else None


def _linear_after_sums(window: Window, large: LargeTensor) -> tuple[LinearOfEdges, float] | None:
    """The linear layer that is given sums of rows of all edges, and how narrow it makes them.

    Where it leaves no more than half, and nothing that is as large as all rows was there before:
    that would be a weight for each of their values.
    """
    linear = linear_of_sums(large.place) if large.place is not None else None
    if linear is None:
        return None
    names, requested = np.array(window.owners.module.names), window.lives.requested
    own = window.module_name(large.row).removesuffix(_AGGREGATES)
    of_step = (window.made_in == window.made_in[large.row]) & (window.phase == Phase.FORWARD)
    result = f"{own}.{linear.layer.partition('.')[2]}"
    made = of_step & (names == result)[window.module]
    sums = of_step & np.isin(names, (own, own + _AGGREGATES))[window.module] & ~large.alike
    if not made.any() or not sums.any() or _weighs_each(window, large):
        return None
    narrowed = float(requested[made].max() / requested[sums].max())
    return (linear, narrowed) if 0 < narrowed <= _NARROW else None


def _weighs_each(window: Window, large: LargeTensor) -> bool:
    """Whether something as large was there already when all rows of the step were gathered."""
    alive = window.lives.alive_at(int(window.lives.alloc[large.row]) - 1)
    return bool((alive & (window.lives.requested == window.lives.requested[large.row])).any())


def _adds_up_in_several_ways(programs: Sequence[Program], layer: str) -> bool:
    """Whether a program makes such a layer with several aggregations: ``aggr=["mean", "max"]``.

    PyG 2.6 computes these of messages alone.
    """
    given = (
        keyword(call, "aggr") for program in programs for call in calls_in(program.tree, layer)
    )
    return any(isinstance(one, (ast.List, ast.Tuple)) and len(one.elts) > 1 for one in given)


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
