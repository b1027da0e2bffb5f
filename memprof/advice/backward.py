"""Rules for passes that keep more than they need: graphs without use, gradients nobody reads."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from memprof.advice.case import Case, Proposal
from memprof.advice.source_facts import serves_training
from memprof.analysis.suspicion import Pattern
from memprof.reference_chain import LinkKind
from memprof.source_code.call_sites import handed_to
from memprof.source_code.dataflow import flow_from
from memprof.source_code.idioms import OPTIMIZERS, growing, keyword, read_by_itself
from memprof.source_code.patch import before, diff, without_keyword, wrapped
from memprof.source_code.program import (
    Place,
    Program,
    bound_names,
    called_name,
    calls_in,
    loaded_names,
)
from memprof.source_code.values import (
    goes_backward,
    is_object,
    survives_call,
    takes_no_gradient,
    trains_besides,
)

__all__ = ["piled_up", "retaining", "rules", "under_no_grad"]

_STEPPING = ("backward", "grad", "step", "enable_grad", "set_grad_enabled")


def rules(case: Case) -> Iterator[Proposal]:
    """``no_grad``, ``no_retain_graph``, ``freeze_params``, ``early_backward``, ``detach``."""
    yield from _of_pattern(case)
    if case.grows:
        yield from retaining(case)


def _of_pattern(case: Case) -> Iterator[Proposal]:
    if case.pattern == Pattern.OLD_GRAPHS.value:
        yield from _old_graphs(case)
    if case.pattern == Pattern.UNUSED_GRADIENTS.value:
        yield from _unused_gradients(case)


def _old_graphs(case: Case) -> Iterator[Proposal]:
    steps = case.fact("steps", 0)
    why = f"Tensors of {steps} earlier steps are kept with the graphs that made them"
    site = case.site
    handed = list(handed_to(site)) if site is not None else []
    for place, argument in handed[:1]:
        text = ast.unparse(argument)
        safe = not is_object(place, argument) and not _learned_later(case, place, argument)
        yield Proposal(
            "detach",
            0.92,
            f"{why}: hand over `{text}.detach()`.",
            place,
            patch=diff(place.program, *wrapped(argument, ".detach()")) if safe else "",
        )
    if not handed:
        yield Proposal("detach", 0.85, f"{why}.", case.places[0] if case.places else site)


def _learned_later(case: Case, place: Place, argument: ast.expr) -> bool:
    """Whether a backward pass may start from what a statement hands over."""
    grown = growing(place)
    if grown is not None:
        return goes_backward(place, grown.container, case.everywhere)
    return not survives_call(place, argument, case.everywhere, number=False)


def _called_from(case: Case) -> Place | None:
    """The statement outside all modules from which what made the tensors was called."""
    outside = (p for f, p in case.frames if f.name.rpartition(".")[2] != "forward")
    return next(outside, None)


def _unused_gradients(case: Case) -> Iterator[Proposal]:
    why = f"backward runs through {case.fact('modules', '')}, whose gradients no optimizer reads"
    inside = bool(case.fact("same_root", otherwise=False))  # the unused part is within the model
    site = case.site if inside else _called_from(case) or case.site
    patch = "" if inside or site is None else _cut_from_training(case, site)
    optimizers = [place for _, place in case.calls(*OPTIMIZERS)]
    yield Proposal(
        "freeze_params",
        0.8 if patch else 0.9,
        f"If these are not trained, `requires_grad_(False)`: {why}.",
        optimizers[0] if inside and optimizers else site,
    )
    ahead = "" if patch else "If nothing before it takes a gradient, "
    yield Proposal(
        "detach",
        0.85 if patch else 0.6,
        f"{ahead}{'c' if ahead else 'C'}ut it off here: {why}.",
        site,
        patch=patch,
    )
    yield Proposal(
        "no_grad",
        0.5,
        f"{ahead or 'Or '}compute it under `torch.no_grad()`: {why}.",
        site,
    )


def _cut_from_training(case: Case, place: Place) -> str:
    """``wanted = teacher(x).detach()``; empty where what comes before may take a gradient.

    A teacher's input is a batch; but an image that is trained by the features that a network makes
    of it, or a generator by the critic, gets its gradient through that very call.
    """
    statement, programs = place.statement, case.everywhere
    if not isinstance(statement, ast.Assign) or isinstance(statement.targets[0], ast.Tuple):
        return ""
    call = statement.value
    if not isinstance(call, ast.Call) or is_object(place, call):
        return ""
    if any(program.functions(called_name(call)) for program in programs):
        return ""  # no module, but a function, that may call others as well
    if not takes_no_gradient(programs, place, call) or not trains_besides(programs, place, call):
        return ""
    return diff(place.program, *wrapped(call, ".detach()"))


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
