"""Rules for passes that keep more than they need: graphs without use, gradients nobody reads."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from memprof.advice.case import Case, Proposal
from memprof.advice.source_facts import serves_training
from memprof.reference_chain import LinkKind
from memprof.source_code.dataflow import flow_from
from memprof.source_code.idioms import growing, keyword, read_by_itself
from memprof.source_code.patch import before, diff, without_keyword
from memprof.source_code.program import (
    Place,
    Program,
    bound_names,
    calls_in,
    loaded_names,
)

__all__ = ["called_from", "piled_up", "retaining", "rules", "under_no_grad"]

_STEPPING = ("backward", "grad", "step", "enable_grad", "set_grad_enabled")


def rules(case: Case) -> Iterator[Proposal]:
    """``no_grad``, ``no_retain_graph``, ``early_backward``, ``detach``."""
    if case.grows:
        yield from retaining(case)


def called_from(case: Case) -> Place | None:
    """The statement outside all modules from which what made the tensors was called."""
    outside = (p for f, p in case.frames if f.name.rpartition(".")[2] != "forward")
    return next(outside, None)


def retaining(case: Case) -> Iterator[Proposal]:
    """``backward(retain_graph=True)``, where that is what keeps the tensors."""
    if case.grows and not piled_up(case):
        return
    near = [*case.places, *(place for _, place in case.frames)]
    for place in {id(p.scope): p for p in near}.values():
        calls = calls_in(place.scope, "backward", "grad")
        asking = [call for call in calls if _retains(call)]
        if asking:
            call = asking[-1]
            needless = call is calls[-1] and not _repeats(place.program, call)
            program = place.program
            yield Proposal(
                "no_retain_graph",
                0.85 if needless else 0.5,
                "`retain_graph=True` keeps every saved tensor after the backward pass"
                + ("." if needless else ": the last pass through a graph needs none."),
                program.place(call),
                patch=diff(program, without_keyword(call, "retain_graph")) if needless else "",
            )
            return


def piled_up(case: Case) -> bool:
    """Whether a container keeps the graphs of many steps, each of its own.

    One graph that runs through all steps hangs on a single name: without the graph of the step
    before, its backward pass would fail.
    """
    for holder in case.found.holders:
        kinds = [link.kind for link in holder.links]
        place = case.place_of(holder)
        if place is not None and growing(place) is None and any(read_by_itself(place)):
            continue  # a dict of weights, made of those of the step before
        if LinkKind.ITEM in kinds and LinkKind.AUTOGRAD_NODE in kinds[kinds.index(LinkKind.ITEM) :]:
            return True
    return False


def _retains(call: ast.Call) -> bool:
    value = keyword(call, "retain_graph")
    return isinstance(value, ast.Constant) and value.value is True


def _repeats(program: Program, call: ast.Call) -> bool:
    """Whether a loop runs the call again on a graph that was made before the loop."""
    place = program.place(call)
    loop = place.loop if place is not None else None
    if loop is None:
        return False
    bound = [target for node in ast.walk(loop) if node is not loop for target in bound_names(node)]
    made = {target.id for target in bound if isinstance(target, ast.Name)}
    return not loaded_names(call.func) & made


def under_no_grad(case: Case) -> str:
    """``@torch.no_grad()`` above the user's outermost function without a backward pass."""
    for _, place in case.frames:
        function = place.function
        if function is None or place.class_ is not None or calls_in(function, *_STEPPING):
            continue
        program = place.program
        if "torch" not in {a.asname or a.name for n in program.tree.body
                           if isinstance(n, ast.Import) for a in n.names}:  # fmt: skip
            continue
        learned = flow_from([program, *case.everywhere], function.name).learned
        if learned or serves_training(case, place):
            return ""
        line = min([function.lineno, *(d.lineno for d in function.decorator_list)])
        return diff(program, before(program, line, "@torch.no_grad()"))
    return ""
