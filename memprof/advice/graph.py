"""Rules for what hangs on autograd's graph: kept losses, histories, passes for nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from memprof.advice.case import Case, Proposal, place_at
from memprof.advice.patch import before, diff, without_keyword, wrapped
from memprof.advice.source import (
    OPTIMIZERS,
    accumulated,
    growing,
    handed_to,
    is_autograd_function,
    keyword,
)
from memprof.analysis.findings import Kind
from memprof.analysis.program import Place, bound_names, calls_in
from memprof.analysis.suspicion import Pattern
from memprof.units import format_bytes

__all__ = ["rules"]

_STEPPING = ("backward", "grad", "step")


def rules(case: Case) -> Iterator[Proposal]:
    """``item``, ``detach``, ``no_grad`` and their kin."""
    if case.grows:
        yield from _running_sum(case)
        yield from _kept_results(case)
        yield from _history(case)
        yield from _created_graph(case)
        yield from _no_backward(case)
    yield from _of_pattern(case)
    if case.grows or case.pattern == Pattern.RETAINED_GRAPH.value:
        yield from _retained(case)


def _near(case: Case) -> list[Place]:
    """Statements of holders, then the one that made the tensors."""
    return [*case.places, *([case.site] if case.site is not None else [])]


def _running_sum(case: Case) -> Iterator[Proposal]:
    """``total = total + loss``."""
    for place in _near(case):
        value = accumulated(place)
        if value is None or not (case.graph or case.found.kind is Kind.HOST_GROWTH):
            continue
        host = case.found.kind is Kind.HOST_GROWTH
        what = "graph nodes in host memory" if host else "every step's activations"
        yield Proposal(
            "item",
            0.95,
            f"The sum hangs on the graph of every `{ast.unparse(value)}` added and keeps {what}: "
            "add the number (`.item()` waits for the device).",
            place,
            patch=diff(place.program, *wrapped(value, ".item()")),
        )
        yield Proposal(
            "detach",
            0.7,
            f"`.detach()` cuts the graph off as well, without waiting; it keeps {what} no longer.",
            place,
            patch=diff(place.program, *wrapped(value, ".detach()")),
        )
        return


def _kept_results(case: Case) -> Iterator[Proposal]:
    """A container that takes tensors with a ``grad_fn``."""
    if not case.graph and case.found.kind is not Kind.HOST_GROWTH:
        return
    if case.links & {"exception", "traceback", "frame", "log_record"}:
        return  # what the container takes is not the tensor
    for place in case.places:
        grown = growing(place)
        if grown is None:
            continue
        value = grown.values[-1]
        simple = isinstance(value, (ast.Name, ast.Attribute, ast.Subscript))
        open_ = simple and not _is_grouped(case)  # else the tensor sits inside what is added
        kept = f"`{grown.container}` keeps `{ast.unparse(value)}`"
        for fix, suffix, certainty, why in _cuts(case):
            patch = diff(place.program, *wrapped(value, suffix)) if open_ else ""
            remains = 1.0 if case.direct and fix == "detach" else 0.0
            yield Proposal(fix, certainty, f"{kept} {why}", place, patch=patch, remains=remains)
        return


def _cuts(case: Case) -> Iterator[tuple[str, str, float, str]]:
    """Fix, code, certainty and reason for a tensor with a ``grad_fn`` that a container takes."""
    if case.scalar and case.direct:
        yield "item", ".item()", 0.9, "as a tensor of one number: keep the number."
    if case.direct and case.backward and not case.scalar:
        why = (
            "after its backward pass: detaching drops the graph's nodes (host memory), while the "
            "tensor itself stays as long as it is kept."
        )
        yield "detach", ".detach()", 0.7, why
        return
    yield "detach", ".detach()", 0.87, "with the graph that made it, and all that graph saved."
    if not case.scalar:
        why = (
            "with its graph: if it is a single number, keep that (`.item()` waits for the device)."
        )
        yield "item", ".item()", 0.65, why


def _is_grouped(case: Case) -> bool:
    """Whether the tensors sit deeper than the container's own items: in dicts or tuples."""
    for holder in case.found.holders:
        items = [link for link in holder.links if link.kind == "item"]
        if len(items) > 1:
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
        value = statement.value
        name = ast.unparse(kept[0])
        yield Proposal(
            "detach",
            0.86,
            f"`{name}` keeps the graph that made it, and with it every tensor saved there.",
            place,
            patch=diff(place.program, *wrapped(value, ".detach()")),
        )
        yield Proposal(
            "no_grad",
            0.6,
            f"If nothing is to be learned through `{name}`, compute it under `torch.no_grad()`.",
            place,
        )
        return


def _created_graph(case: Case) -> Iterator[Proposal]:
    """``backward(create_graph=True)``: gradients that hold the graph that made them."""
    if not (case.graph or case.links & {"grad", "cpp_cycle", "cycle"} or _is_gradient(case)):
        return
    near = [*case.places, *(place for _, place in case.frames)]
    scopes = {id(place.scope): place for place in near}
    for place in scopes.values():
        for call in calls_in(place.scope, "backward"):
            value = keyword(call, "create_graph")
            if not (isinstance(value, ast.Constant) and value.value is True):
                continue
            where = place.program.place(call)
            by_parameter = any(link in case.links for link in ("parameter", "module_attribute"))
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
            patch=_decorated(case),
        )


def _decorated(case: Case) -> str:
    """``@torch.no_grad()`` above the user's outermost function without a backward pass."""
    for _, place in case.frames:
        function = place.function
        if function is None or place.class_ is not None or calls_in(function, *_STEPPING):
            continue
        program = place.program
        if "torch" not in {a.asname or a.name for n in program.tree.body
                           if isinstance(n, ast.Import) for a in n.names}:  # fmt: skip
            continue
        line = min([function.lineno, *(d.lineno for d in function.decorator_list)])
        return diff(program, before(program, line, "@torch.no_grad()"))
    return ""


def _retained(case: Case) -> Iterator[Proposal]:
    near = [*case.places, *(place for _, place in case.frames)]
    for place in {id(p.scope): p for p in near}.values():
        for call in calls_in(place.scope, "backward"):
            value = keyword(call, "retain_graph")
            if isinstance(value, ast.Constant) and value.value is True:
                program = place.program
                yield Proposal(
                    "no_retain_graph",
                    0.85,
                    "`retain_graph=True` keeps every saved tensor after the backward pass.",
                    program.place(call),
                    patch=diff(program, without_keyword(call, "retain_graph")),
                )
                return


def _of_pattern(case: Case) -> Iterator[Proposal]:
    nbytes = format_bytes(case.found.bytes)
    if case.pattern == Pattern.EVALUATION_GRAPH.value:
        why = f"{nbytes} of activations wait for a backward pass that does not come."
        patch = _decorated(case)
        yield Proposal("no_grad", 0.9, why, case.site, patch=patch)
        yield Proposal(
            "inference_mode", 0.6, f"{why} Inference mode saves a little more.", case.site
        )
    if case.pattern == Pattern.OLD_GRAPHS.value:
        yield from _old_graphs(case)
    if case.pattern == Pattern.RETAINED_GRAPH.value:
        why = f"{nbytes} of activations outlive the backward pass, held by the loss or the output."
        yield Proposal("del_ref", 0.6, why, case.site)
    if case.pattern == Pattern.UNUSED_GRADIENTS.value:
        yield from _unused_gradients(case)
    if case.pattern == Pattern.SUMMED_LOSSES.value and "sum_line" in case.found.evidence.facts:
        line = int(case.fact("sum_line", 0))
        yield Proposal(
            "early_backward",
            0.95,
            f"The graphs of {case.fact('times', 2)} passes are alive at once ({nbytes}): call "
            "`backward()` on each loss, the gradients add up to the same.",
            place_at(str(case.fact("sum_file", "")), line),
            line,
        )


def _old_graphs(case: Case) -> Iterator[Proposal]:
    steps = case.fact("steps", 0)
    why = f"Tensors of {steps} earlier steps are kept with the graphs that made them"
    site = case.site
    handed = list(handed_to(site)) if site is not None else []
    for place, argument in handed[:1]:
        text = ast.unparse(argument)
        yield Proposal(
            "detach",
            0.92,
            f"{why}: hand over `{text}.detach()`.",
            place,
            patch=diff(place.program, *wrapped(argument, ".detach()")),
        )
    if not handed:
        yield Proposal("detach", 0.85, f"{why}.", case.places[0] if case.places else site)


def _called_from(case: Case) -> Place | None:
    """The statement outside all modules from which what made the tensors was called."""
    outside = (p for f, p in case.frames if f.name.rpartition(".")[2] != "forward")
    return next(outside, None)


def _unused_gradients(case: Case) -> Iterator[Proposal]:
    why = f"backward runs through {case.fact('modules', '')}, whose gradients no optimizer reads"
    inside = bool(case.fact("same_root", otherwise=False))  # the unused part is within the model
    site = case.site if inside else _called_from(case) or case.site
    statement = site.statement if site is not None else None
    patch = ""
    if site is not None and isinstance(statement, ast.Assign) and not inside:
        patch = diff(site.program, *wrapped(statement.value, ".detach()"))
    optimizers = [place for _, place in case.calls(*OPTIMIZERS)]
    yield Proposal(
        "freeze_params",
        0.9 if inside else 0.8,
        f"If these are not trained, `requires_grad_(False)`: {why}.",
        optimizers[0] if inside and optimizers else site,
    )
    yield Proposal("detach", 0.85, f"Cut it off here: {why}.", site, patch=patch)
    yield Proposal("no_grad", 0.5, f"Or compute it under `torch.no_grad()`: {why}.", site)
