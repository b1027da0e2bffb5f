"""Rules for what hangs on autograd's graph and grows: kept losses, histories, sums."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise

from memprof.advice.backward import piled_up, under_no_grad
from memprof.advice.callers import Handed, handed_over
from memprof.advice.case import Case, Proposal
from memprof.advice.origin import is_fresh_tensor
from memprof.advice.patch import diff, wrapped
from memprof.advice.safety import (
    goes_backward,
    is_number,
    is_object,
    is_python_number,
    makes_number,
    survives_call,
    used_as_tensor,
)
from memprof.advice.source import (
    accumulated,
    growing,
    is_autograd_function,
    keyword,
    read_by_itself,
    reads_name,
)
from memprof.analysis.findings import Kind
from memprof.analysis.program import Place, bound_names, calls_in, loaded_names
from memprof.reference_chain import THROUGH_GRAPH, LinkKind
from memprof.units import format_percent

__all__ = ["rules"]


_MOSTLY = 0.5
"""Share of the bytes from which cutting off the graph is not the remedy."""
_OF_ERRORS = frozenset(
    {LinkKind.EXCEPTION, LinkKind.TRACEBACK, LinkKind.FRAME, LinkKind.LOG_RECORD}
)
_OF_TENSORS = THROUGH_GRAPH | {LinkKind.BASE, LinkKind.GRAD}
"""Links by which one tensor keeps another, or a graph."""
_INSIDE = frozenset({LinkKind.ITEM, LinkKind.ATTRIBUTE})
"""Links from what a container holds to a tensor further inside."""


def rules(case: Case) -> Iterator[Proposal]:
    """``item``, ``detach``, ``no_grad`` and their kin."""
    if case.grows:
        yield from _running_sum(case)
        yield from _kept_results(case)
        yield from _carried(case)
        yield from _history(case)
        yield from _created_graph(case)
        yield from _no_backward(case)


def _near(case: Case) -> list[Place]:
    """Statements of holders, then the one that made the tensors."""
    return [*case.places, *([case.site] if case.site is not None else [])]


def _running_sum(case: Case) -> Iterator[Proposal]:
    """``total = total + loss``."""
    for place in _near(case):
        value = accumulated(place)
        if value is None or not (case.graph or case.found.kind is Kind.HOST_GROWTH):
            continue
        if is_python_number(case, value) or _is_residual(place, value):
            continue
        host = case.found.kind is Kind.HOST_GROWTH
        what = "graph nodes in host memory" if host else "every step's activations"
        why = f"The sum hangs on the graph of every `{ast.unparse(value)}` added and keeps {what}"
        total = ast.unparse(bound_names(place.statement)[0])
        if goes_backward(place, total, case.everywhere):
            yield Proposal(
                "detach",
                0.95,
                f"{why}: begin each backward pass at what its step adds, and add that detached.",
                place,
            )
            return
        number = makes_number(case, place)
        number = is_number(case, place, value) if number is None else number
        plain = number is not False and not used_as_tensor(case, place, total)
        if plain:
            yield Proposal(
                "item",
                0.95,
                f"{why}: add the number (`.item()` waits for the device).",
                place,
                patch=diff(place.program, *wrapped(value, ".item()")) if number else "",
            )
        yield Proposal(
            "detach",
            0.7 if plain else 0.95,
            f"`.detach()` cuts the graph off as well, without waiting; it keeps {what} no longer."
            if plain
            else f"{why}: add it detached.",
            place,
            patch=diff(place.program, *wrapped(value, ".detach()")),
        )
        return


def _is_residual(place: Place, value: ast.expr) -> bool:
    """Whether it is a layer's ``x = x + f(x)``, which no step adds to: what is added reads it."""
    function = place.function
    targets = {target.id for target in bound_names(place.statement) if isinstance(target, ast.Name)}
    inside = function is not None and function.name == "forward" and place.class_ is not None
    return bool(targets) and (inside or bool(targets & loaded_names(value)))


def _kept_results(case: Case) -> Iterator[Proposal]:
    """A container that takes tensors with a ``grad_fn``."""
    if not case.graph and case.found.kind is not Kind.HOST_GROWTH:
        return
    if case.links & _OF_ERRORS:
        return  # what the container takes is not the tensor
    for place in case.places:
        grown = growing(place)
        if grown is None:
            continue
        value = grown.values[-1]
        open_ = not _is_grouped(case)  # else the tensor sits inside what is added
        kept = f"`{grown.container}` keeps `{ast.unparse(value)}`"
        learned = goes_backward(place, grown.container, case.everywhere)
        places = _places_to_cut(case, place, value)
        tensors = used_as_tensor(case, place, grown.container)
        cuts = [cut for cut in _cuts(case) if not (tensors and cut[0] == "item")]
        for (fix, suffix, certainty, why), (where, what) in zip(cuts, places, strict=False):
            number = is_number(case, where, what)
            if fix == "item" and number is False:
                continue
            tensor = _is_plain(what) or (where is place and _takes_tensors(case))
            sure = open_ and tensor and not learned and (fix != "item" or number is True)
            if where is not place:
                sure = sure and survives_call(case, where, what, number=fix == "item")
            patch = diff(where.program, *wrapped(what, suffix)) if sure else ""
            remains = case.kept_itself if fix == "detach" else 0.0
            sureness = 0.9 if tensors else certainty
            yield Proposal(fix, sureness, f"{kept} {why}", where, patch=patch, remains=remains)
        return


def _places_to_cut(case: Case, place: Place, value: ast.expr) -> list[Handed]:
    """Where to write the first remedy and the second: where it is kept, and where it comes from."""
    return [(place, value), handed_over(case, place, value) or (place, value)]


def _is_plain(value: ast.expr) -> bool:
    return isinstance(value, (ast.Name, ast.Attribute, ast.Subscript))


def _takes_tensors(case: Case) -> bool:
    """Whether what the container takes was seen to be tensors: such as what a module returned."""
    for holder in case.found.holders:
        kinds = [link.kind for link in holder.links]
        if LinkKind.ITEM in kinds:
            after = kinds[len(kinds) - kinds[::-1].index(LinkKind.ITEM) :]
            return not after or after[0] == LinkKind.AUTOGRAD_NODE
    return False


def _cuts(case: Case) -> Iterator[tuple[str, str, float, str]]:
    """Fix, code, certainty and reason for a tensor with a ``grad_fn`` that a container takes."""
    if case.scalar and case.direct:
        yield "item", ".item()", 0.9, "as a tensor of one number: keep the number."
    if case.direct and case.backward:
        why = (
            "after its backward pass: detaching drops the graph's nodes (host memory), while the "
            "tensor itself stays as long as it is kept."
        )
        yield "detach", ".detach()", 0.7, why
        return
    if case.kept_itself > _MOSTLY:
        share = format_percent(case.kept_itself, 1)
        left = f"cutting that off leaves the tensors, {share} of the bytes."
        yield "detach", ".detach()", 0.5, f"with the graph that made it; {left}"
        return
    why = "with the graph that made it, and all that graph saved: keep it detached (`.detach()`)."
    yield "detach", ".detach()", 0.87, why
    if not case.scalar:
        why = (
            "with its graph: if it is a single number, keep that (`.item()` waits for the device)."
        )
        yield "item", ".item()", 0.65, why


def _is_grouped(case: Case) -> bool:
    """Whether the tensors sit deeper than the container's own items: in dicts or tuples."""
    for holder in case.found.holders:
        kinds = [link.kind for link in holder.links]
        if LinkKind.ITEM in kinds and _INSIDE & set(kinds[kinds.index(LinkKind.ITEM) + 1 :]):
            return True
    return False


def _history(case: Case) -> Iterator[Proposal]:
    """A buffer or an attribute that is assigned a value with a graph, step after step."""
    if not case.graph:
        return
    for place in case.places:
        statement = place.statement
        if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or statement.value is None:
            continue
        kept = [t for t in bound_names(statement) if isinstance(t, ast.Attribute)]
        if not kept or accumulated(place) is not None or is_autograd_function(place):
            continue
        if any(read_by_itself(place)):
            continue
        name = ast.unparse(kept[0])
        yield Proposal(
            "detach",
            0.86,
            f"`{name}` keeps the graph that made it, and with it every tensor saved there.",
            place,
            patch=_cut_off(case, place, statement.value, name),
        )
        yield Proposal(
            "no_grad",
            0.6,
            f"If nothing is to be learned through `{name}`, compute it under `torch.no_grad()`.",
            place,
        )
        return


def _cut_off(case: Case, place: Place, value: ast.expr, name: str) -> str:
    """``self.state = out.detach()``; empty where the function goes on to learn from it."""
    targets = place.statement.targets if isinstance(place.statement, ast.Assign) else []
    if LinkKind.ITEM in case.links or any(isinstance(t, (ast.Tuple, ast.List)) for t in targets):
        return ""
    nodes = [node for node in ast.walk(place.scope) if isinstance(node, ast.expr)]
    if any(reads_name(node, name) and node.lineno > place.line for node in nodes):
        return ""
    if is_object(place, value) or not _is_tensor_itself(case, name):
        return ""
    return diff(place.program, *wrapped(value, ".detach()"))


def _is_tensor_itself(case: Case, name: str) -> bool:
    """Whether the chains go from a name straight into the graph, and through no other object."""
    last = name.rpartition(".")[2]
    for holder in case.found.holders:
        for link, below in pairwise(holder.links):
            if link.name == last and below.kind not in _OF_TENSORS:
                return False
    return True


def _carried(case: Case) -> Iterator[Proposal]:
    """``h = net(x, h)``: each step's graph hangs on that of the step before."""
    near = [*case.places, *(place for _, place in case.frames)]
    if not case.graph or piled_up(case) or (case.direct and LinkKind.ITEM in case.links):
        return
    if any(_is_sum(place) for place in near):
        return
    for place in near:
        for name, reads in read_by_itself(place):
            patch = _between_steps(case, place, name, reads)
            yield Proposal(
                "detach",
                0.9,
                f"`{name}` is made from the `{name}` of the step before, whose graph it keeps, and "
                "that of all steps before it: hand over "
                + (f"`{name}.detach()`." if patch else f"`{name}` detached."),
                place,
                patch=patch,
            )
            return


def _is_sum(place: Place) -> bool:
    value = accumulated(place)
    return value is not None and not _is_residual(place, value)


def _between_steps(case: Case, place: Place, name: str, reads: list[ast.expr]) -> str:
    """The patch; empty where it might cut within a step, or the name may be no tensor.

    None at first, or the pair of states that an LSTM returns.
    """
    within = place.loop is not None and not calls_in(place.loop, "backward")
    if within or LinkKind.ITEM in case.links or not is_fresh_tensor(place, name, place.statement):
        return ""
    return diff(place.program, *(edit for node in reads for edit in wrapped(node, ".detach()")))


def _created_graph(case: Case) -> Iterator[Proposal]:
    """``backward(create_graph=True)``: gradients that hold the graph that made them."""
    by_gradient = case.links & {LinkKind.GRAD, LinkKind.CPP_CYCLE, LinkKind.CYCLE}
    if not (case.graph or by_gradient or _is_gradient(case)):
        return
    near = [*case.places, *(place for _, place in case.frames)]
    scopes = {id(place.scope): place for place in near}
    for place in scopes.values():
        for call in calls_in(place.scope, "backward"):
            value = keyword(call, "create_graph")
            if not (isinstance(value, ast.Constant) and value.value is True):
                continue
            where = place.program.place(call)
            by_parameter = bool(case.links & {LinkKind.PARAMETER, LinkKind.MODULE_ATTRIBUTE})
            yield Proposal(
                "set_to_none",
                0.93 if by_parameter else 0.7,
                "With `create_graph=True` a gradient holds the graph that made it, and that the "
                "leaf: set `.grad = None` once the gradients have been used.",
                where,
            )
            yield Proposal(
                "autograd_grad",
                0.9,
                "`torch.autograd.grad(…, create_graph=True)` returns the gradients and stores none "
                "in `.grad`, so that no cycle comes about.",
                where,
            )
            return


def _is_gradient(case: Case) -> bool:
    return case.found.category == "gradient"


def _no_backward(case: Case) -> Iterator[Proposal]:
    """Graphs grow in a program that never runs a backward pass."""
    builds = case.graph and not case.backward and case.found.kind is not Kind.CYCLE
    if builds and case.site is not None and case.links:
        yield Proposal(
            "no_grad",
            0.75,
            "Nothing here runs a backward pass, yet the graph is built and kept.",
            case.site,
            patch=under_no_grad(case),
        )
