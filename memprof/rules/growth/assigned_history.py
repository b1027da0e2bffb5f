"""assigned-history: an attribute or a buffer is assigned a tensor with the graph that made it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from memprof.reference_chain import THROUGH_GRAPH, LinkKind
from memprof.rules.case import Case, attribute_of_graph
from memprof.rules.graph_lines import behind_calls
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.attributes_by_name import attributes_by_name
from memprof.source_code.idioms import (
    accumulation,
    attribute_set,
    growing,
    is_autograd_function,
    is_cut_off,
    read_by_itself,
    reads_name,
)
from memprof.source_code.patch import diff, wrapped
from memprof.source_code.program import Place, bound_names, called_name, loaded_names
from memprof.source_code.scopes import qualified_name
from memprof.source_code.values import is_new_tensor, is_object
from memprof.trace import Frame

__all__ = ["RULE"]

_CUTTING = frozenset({"detach", "item", "tolist", "numpy", "data"})
"""Attributes by which a tensor is read without its graph."""
_OF_FUNCTIONS = ("torch.nn.functional.", "torch.nn.utils.")
"""Modules of torch that have functions, and no classes of modules."""
_MAKING_CONTAINERS = frozenset(("dict", "frozenset", "list", "set", "tuple"))
_OF_TENSORS = THROUGH_GRAPH | {LinkKind.BASE, LinkKind.GRAD}
"""Links by which one tensor keeps another, or a graph."""


@dataclass(frozen=True, slots=True, eq=False)
class Assigned(Cause):
    """The statement that assigns, and what."""

    place: Place
    name: str
    """As written: ``self.state``."""
    value: ast.expr


class AssignedHistory(GrowthRule[Assigned]):
    """`self.state = out`, where the next step's `out` is computed with `self.state`."""

    name = "assigned-history"
    summary = "an attribute or a buffer keeps the graph of what it is assigned"
    fixes = ("detach", "no_grad")
    yields_to = ("running-sum", "carried-state", "create-graph")

    def match(self, case: Case) -> Assigned | None:
        """An attribute that is assigned what is made without it, and holds a graph."""
        # Where all that grows is what the holder has itself, a graph of it would free nothing.
        if not case.graph or (case.direct and case.finding.growth.kept_itself == 1.0):
            return None
        for place in (*case.places, *case.assignments, *behind_calls(case)):
            statement = place.statement
            if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or statement.value is None:
                continue
            names = [name for one in bound_names(statement) if (name := attribute_set(one))]
            if not names or accumulation(place) is not None or is_autograd_function(place):
                continue
            if growing(place) is not None:
                continue  # ``self.rows = [*self.rows, out]`` fills a container
            if not loaded_names(statement.value) - _MAKING_CONTAINERS:
                continue  # settings that are written out
            if _makes_module(place, statement.value):
                continue
            if not any(read_by_itself(place)) and not is_new_tensor(statement.value):
                return Assigned(place, _held(names, case), statement.value)
        return _by_name(case)

    def advice(self, cause: Assigned, case: Case) -> Iterator[Advice]:
        """Assign it without its graph; or compute it without one, first where others need that."""
        others = _others(cause)
        if others:
            names = " and ".join(f"`{name}`" for name in (cause.name, *others))
            yield Advice(
                "no_grad",
                f"{names} keep the graphs that made them, each from step to step: if nothing is "
                f"to be learned through them, compute all under `torch.no_grad()`.",
                cause.place,
            )
        yield Advice(
            "detach",
            f"`{cause.name}` keeps the graph that made it, and with it every tensor saved there.",
            cause.place,
            patch="" if others else _cut_off(cause, case),
            otherwise=bool(others),
        )
        if others:
            return
        yield Advice(
            "no_grad",
            f"If nothing is to be learned through `{cause.name}`, compute it under "
            "`torch.no_grad()`.",
            cause.place,
            otherwise=True,
        )


def _makes_module(place: Place, value: ast.expr) -> bool:
    """Whether a constructor makes a part of a model, which has no step's graph.

    A record may have a field of that name: ``Prediction.score``, beside ``self.score = Linear(…)``.
    """
    if not isinstance(value, ast.Call) or place.function is None:
        return False
    own = any(one.name == called_name(value) for one in place.program.classes())
    name = qualified_name(place, value.func)
    of_torch = name.startswith("torch.nn.") and not name.startswith(_OF_FUNCTIONS)
    return place.function.name == "__init__" and (own or of_torch)


def _held(names: Sequence[str], case: Case) -> str:
    """Of the attributes that a statement assigns, the one that a chain goes through; or the first.

    ``self.low, self.high = self.ranges(x)``.
    """
    holding = {attribute_of_graph(holder) for holder in case.finding.holders}
    return next((one for one in names if one.rpartition(".")[2] in holding), names[0])


def _by_name(case: Case) -> Assigned | None:
    """The one ``setattr`` in a function that computes tensors, of an attribute that has a graph."""
    names = {name for holder in case.finding.holders if (name := attribute_of_graph(holder))}
    frames = case.trace.tables.frames if case.trace is not None else ()
    for name in sorted(names):
        calls = [
            (call, place)
            for call, place in attributes_by_name(case.programs, name)
            if _computes_tensors(place, frames) and case.is_as_it_ran(place.program) is not False
        ]
        if len(calls) != 1:
            continue
        call, place = calls[0]
        owner, _, value = call.args
        if not is_new_tensor(value) and not is_cut_off(place, value):
            return Assigned(place, f"{ast.unparse(owner)}.{name}", value)
    return None


def _computes_tensors(place: Place, frames: Sequence[Frame]) -> bool:
    """Whether a stack of the recording goes through the function that a statement stands in."""
    function = place.function
    if function is None:
        return False
    lines = range(function.lineno, (function.end_lineno or function.lineno) + 1)
    return any(one.line in lines and one.filename == place.program.filename for one in frames)


def _others(cause: Assigned) -> list[str]:
    """Other attributes that the same function computes of what they were, with their graphs.

    To cut one of them off frees nothing that the others have in common with it.
    """
    place = cause.place
    if place.function is None or not _is_of_itself(cause.value, cause.name):
        return []
    others: dict[str, None] = {}
    for node in ast.walk(place.function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            name = attribute_set(node.targets[0])
            if name and name != cause.name and _is_of_itself(node.value, name):
                others.setdefault(name)
    return list(others)


def _is_of_itself(value: ast.expr, name: str) -> bool:
    """Whether a value is computed of the attribute's last one and a variable, without a cut."""
    nodes = list(ast.walk(value))
    is_cut = any(isinstance(one, ast.Attribute) and one.attr in _CUTTING for one in nodes)
    reads = any(isinstance(one, ast.expr) and reads_name(one, name) for one in nodes)
    return reads and not is_cut and bool(loaded_names(value) - {"self"})


def _cut_off(cause: Assigned, case: Case) -> str:
    """``self.state = out.detach()``; empty where the function goes on to learn from it."""
    place, name = cause.place, cause.name
    targets = place.statement.targets if isinstance(place.statement, ast.Assign) else []
    if LinkKind.ITEM in case.links or any(isinstance(t, (ast.Tuple, ast.List)) for t in targets):
        return ""
    nodes = [node for node in ast.walk(place.scope) if isinstance(node, ast.expr)]
    if any(reads_name(node, name) and node.lineno > place.line for node in nodes):
        return ""
    if is_object(place, cause.value) or not _is_tensor_itself(case, name):
        return ""
    if _is_read_with_graph(place, name.rpartition(".")[2]):
        return ""
    return diff(place.program, *wrapped(cause.value, ".detach()"))


def _is_read_with_graph(place: Place, attribute: str) -> bool:
    """Whether another function of the file reads an attribute of that name, and does not cut it."""
    inside = set(map(id, ast.walk(place.scope)))
    nodes = [node for node in place.program.nodes if isinstance(node, ast.Attribute)]
    cut = {id(node.value) for node in nodes if node.attr in _CUTTING}
    return any(
        node.attr == attribute
        and isinstance(node.ctx, ast.Load)
        and id(node) not in inside
        and id(node) not in cut
        for node in nodes
    )


def _is_tensor_itself(case: Case, name: str) -> bool:
    """Whether the chains go from a name straight into the graph, and through no other object."""
    last = name.rpartition(".")[2]
    for holder in case.finding.holders:
        for link, below in pairwise(holder.links):
            if link.name == last and below.kind not in _OF_TENSORS:
                return False
    return True


RULE = AssignedHistory()
