"""Autograd graphs that stay: the lines to look at, and what several rules ask of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from memprof.records import Holder
from memprof.reference_chain import LinkKind, above_graph, is_field
from memprof.rules.case import Case
from memprof.rules.rule import Advice
from memprof.rules.source_facts import serves_training
from memprof.rules.unvisited_passes import keeps_graph
from memprof.source_code.call_sites import parameters_given
from memprof.source_code.dataflow import flow_from
from memprof.source_code.idioms import (
    Accumulation,
    accumulation,
    added_by,
    growing,
    is_cut_off,
    is_moving_average,
    is_partly_cut,
    read_by_itself,
)
from memprof.source_code.patch import before, diff, without_keyword
from memprof.source_code.program import (
    FUNCTIONS,
    Place,
    Program,
    bound_names,
    calls_in,
    loaded_names,
    root_name,
)
from memprof.source_code.retained_graphs import asked_by_options, retain_argument
from memprof.source_code.returned_values import returned_from
from memprof.source_code.verbs import CUTTING
from memprof.trace import EMPTY, Frame, Phase
from memprof.views.window import Window

__all__ = [
    "OF_ERRORS",
    "added_within_calls",
    "behind_calls",
    "calling_place",
    "holding_places",
    "is_forward",
    "is_unlearned",
    "never_visited",
    "none_meanwhile",
    "of_many_steps",
    "on_the_way",
    "retaining",
    "running_sum",
    "under_no_grad",
]

OF_ERRORS = frozenset({LinkKind.EXCEPTION, LinkKind.TRACEBACK, LinkKind.FRAME, LinkKind.LOG_RECORD})
"""Links by which a failed call keeps its variables: what they hold is not meant to stay."""
_FAR_MORE = 2
_LEAST_TENSORS = 8
"""Of a shorter time it cannot be said that no backward pass comes in it."""
_STEPPING = ("backward", "grad", "step", "enable_grad", "set_grad_enabled")


def holding_places(case: Case) -> list[Place]:
    """Statements of the holders, then the one that made the tensors."""
    return [*case.places, *([case.site] if case.site is not None else [])]


def on_the_way(case: Case) -> list[Place]:
    """Statements of the holders, then those of the calls that made the tensors, innermost first."""
    return [*case.places, *(place for _, place in case.frames)]


def behind_calls(case: Case) -> list[Place]:
    """Statements that bind what a holder was handed by the function that keeps it as well.

    Those that go on from what was there before come first: others begin it. None that cut off the
    graph.
    """
    behind = [
        one
        for place in case.places
        for one in returned_from(place, case.everywhere)
        if not _cuts(one)
    ]
    return sorted(behind, key=lambda one: not is_moving_average(one))


def added_within_calls(case: Case) -> Iterator[Place]:
    """Statements that add to an entry of what a holder's line makes and hands to their function.

    ``metrics = {}``, handed to a function with ``metrics[key] = metrics.get(key, 0) + loss``. Those
    of functions that led to the tensors come first.
    """
    ran = {id(place.scope) for _, place in case.frames}
    adding = [
        (where, root_name(addition.total))
        for program in case.programs
        for node in program.nodes
        if isinstance(node, (ast.Assign, ast.AugAssign))
        and (addition := added_by(node)) is not None
        and isinstance(addition.total, (ast.Attribute, ast.Subscript))
        and (where := program.place(node)) is not None
    ]
    adding.sort(key=lambda one: id(one[0].scope) not in ran)
    for place in case.places:
        names = {one.id for one in bound_names(place.statement) if isinstance(one, ast.Name)}
        for where, name in adding:
            if name in parameters_given(place, where, names):
                yield where


def _cuts(place: Place) -> bool:
    """Whether a statement cuts what it binds off its graph, or what it adds."""
    value = getattr(place.statement, "value", None)
    return isinstance(value, ast.expr) and (is_cut_off(place, value) or is_partly_cut(value))


def running_sum(place: Place) -> Accumulation | None:
    """The sum over the steps that a statement adds to; None for other statements."""
    addition = accumulation(place)
    return addition if addition is not None and not _is_residual(place, addition.value) else None


def _is_residual(place: Place, value: ast.expr) -> bool:
    """Whether it is a layer's ``x = x + f(x)``, which no step adds to: what is added reads it."""
    function = place.function
    targets = {target.id for target in bound_names(place.statement) if isinstance(target, ast.Name)}
    inside = function is not None and function.name == "forward" and place.class_ is not None
    return bool(targets) and (inside or bool(targets & loaded_names(value)))


def of_many_steps(case: Case) -> bool:
    """Whether a container keeps the graphs of many steps, each of its own.

    One graph that runs through all steps hangs on a single name: without the graph of the step
    before, its backward pass would fail.
    """
    for holder in case.finding.holders:
        kinds = [link.kind for link in holder.links]
        place = case.place_of(holder)
        if place is not None and growing(place) is None and any(read_by_itself(place)):
            continue  # a dict of weights, made of those of the step before
        if growing(place) is None and _is_in_record(holder, case.finding.growth.times):
            continue  # a dict with a few entries, of which one is a state
        if LinkKind.ITEM in kinds and LinkKind.AUTOGRAD_NODE in kinds[kinds.index(LinkKind.ITEM) :]:
            return True
    return False


def _is_in_record(holder: Holder, steps: int) -> bool:
    """Whether all that is between a name and a graph is dicts of far fewer entries than steps."""
    links = above_graph(holder.links)
    items = [link for link in links if link.kind == LinkKind.ITEM]
    are_few = (is_field(link) and _FAR_MORE * link.length < steps for link in items)
    return bool(items) and all(are_few)


def retaining(case: Case, *others: Place) -> Iterator[Advice]:
    """``backward(retain_graph=True)`` in a function that holds the tensors or leads to them.

    Or in that of ``others``.
    """
    for place in {id(p.scope): p for p in (*others, *on_the_way(case))}.values():
        calls = calls_in(place.scope, "backward", "grad", "manual_backward")
        asking = [call for call in calls if _retains(call)]
        by_options = [(one, asked_by_options(one, case.everywhere)) for one in calls]
        handing = [(call, options) for call, options in by_options if options is not None]
        if not asking and handing:
            call, options = handing[-1]
            yield Advice(
                "no_retain_graph",
                f"`{ast.unparse(options)}` hands over `retain_graph=True`, which keeps every saved "
                "tensor after the backward pass: the last pass through a graph needs none.",
                place.program.place(call),
                otherwise=True,
            )
            return
        if asking:
            call = asking[-1]
            program = place.program
            needless = call is calls[-1] and not (
                _repeats(program, call) or _is_carried_on(program, call)
            )
            yield Advice(
                "no_retain_graph",
                "`retain_graph=True` keeps every saved tensor after the backward pass"
                + ("." if needless else ": the last pass through a graph needs none."),
                program.place(call),
                patch=diff(program, without_keyword(call, "retain_graph")) if needless else "",
                otherwise=not needless,
            )
            return


def _retains(call: ast.Call) -> bool:
    value = retain_argument(call)
    return isinstance(value, ast.Constant) and value.value is True


def _repeats(program: Program, call: ast.Call) -> bool:
    """Whether a loop runs the call again on a graph that was made before the loop."""
    place = program.place(call)
    loop = place.loop if place is not None else None
    if loop is None:
        return False
    targets = [
        target for node in ast.walk(loop) if node is not loop for target in bound_names(node)
    ]
    names_bound = {target.id for target in targets if isinstance(target, ast.Name)}
    return not loaded_names(call.func) & names_bound


def _is_carried_on(program: Program, call: ast.Call) -> bool:
    """Whether rounds of the loop around a call go on from what the round before has made.

    ``out, state = net(x, state)``: unless that is cut off, each backward pass goes through all.
    """
    place = program.place(call)
    loop = place.loop if place is not None else None
    if loop is None:
        return False
    bound: set[str] = set()
    nodes = (node for node in ast.walk(loop) if isinstance(node, ast.stmt))
    for node in sorted(nodes, key=lambda one: one.lineno):
        names = {one.id for one in bound_names(node) if isinstance(one, ast.Name)}
        value = node.value if isinstance(node, ast.Assign) else None
        own = names & loaded_names(value) - bound if isinstance(value, ast.Call) else set()
        if own and not any(root_name(cut) in own for cut in calls_in(loop, *CUTTING)):
            return True
        bound |= names
    return False


def under_no_grad(case: Case) -> str:
    """``@torch.no_grad()`` above the user's innermost function without a backward pass."""
    for place in _without_backward(case):
        program = place.program
        if place.class_ is not None or "torch" not in _modules_imported(program):
            continue
        function = place.function
        if function is None or not _is_unlearned(case, place):
            return ""
        line = min([function.lineno, *(d.lineno for d in function.decorator_list)])
        return diff(program, before(program, line, "@torch.no_grad()"))
    return ""


def is_unlearned(case: Case) -> bool:
    """Whether no backward pass starts from what the function returns that calls the model.

    Nor has one freed anything that it made, or is run by it.
    """
    return any(_is_unlearned(case, place) for place in [*_without_backward(case)][:1])


def _without_backward(case: Case) -> Iterator[Place]:
    """Statements of the user's functions outside of modules that run no backward pass."""
    for frame, place in case.frames:
        function = place.function
        if function is None or is_forward(frame) or calls_in(function, *_STEPPING):
            continue
        yield place


def _is_unlearned(case: Case, place: Place) -> bool:
    name = place.function.name if place.function is not None else ""
    flow = flow_from([place.program, *case.everywhere], name)
    return not (flow.learned or serves_training(case, place))


def _modules_imported(program: Program) -> set[str]:
    imports = (node for node in program.tree.body if isinstance(node, ast.Import))
    return {one.asname or one.name for node in imports for one in node.names}


def none_meanwhile(window: Window | None, allocs: npt.NDArray[np.int64]) -> bool:
    """Whether no backward pass ran from the first to the last of these allocations.

    Others may: samples are drawn between two epochs of training.
    """
    if window is None or len(allocs) < _LEAST_TENSORS:
        return False
    between = window.phase_of_event[int(allocs.min()) : int(allocs.max()) + 1]
    return not bool((between == Phase.BACKWARD).any())


def never_visited(window: Window | None, allocs: npt.NDArray[np.int64]) -> bool:
    """Whether backward passes ran after these allocations, and freed nothing that is made alike.

    Made alike is what has one of their stacks. A backward pass frees what it goes through, whoever
    holds the graph, unless it is asked to keep it: where one of them is, or where nobody knows
    which line ran one, nothing is known.
    """
    if window is None or window.owners.inferred or len(allocs) < _LEAST_TENSORS:
        return False
    first = int(allocs.min())
    in_pass = window.phase_of_event[first:] == Phase.BACKWARD
    stacks = np.unique(window.trace.events.stack[first:][in_pass])
    lines = [window.user_frames(window.trace.stack(s)) for s in stacks[stacks != EMPTY].tolist()]
    if not lines or any(not frames or keeps_graph(frames[0]) for frames in lines):
        return False
    lives = window.lives
    stacks = np.unique(lives.stack[np.isin(lives.alloc, allocs)])
    freed_by = window.freed_by[np.isin(lives.stack, stacks)]
    return not bool((freed_by == Phase.BACKWARD).any())


def calling_place(case: Case) -> Place | None:
    """The statement outside of the modules' own code that calls the model."""
    in_forward = [at for at, (frame, _) in enumerate(case.frames) if is_forward(frame)]
    outside = case.frames[in_forward[-1] + 1 :] if in_forward else case.frames
    if len(outside) > 1 and _is_own_method(case, *outside[:2]):
        return outside[1][1]
    return outside[0][1] if outside else case.site


def _is_own_method(case: Case, one: tuple[Frame, Place], caller: tuple[Frame, Place]) -> bool:
    """Whether a frame is another method of a module, called from outside: ``model.embed(x)``.

    What a framework calls, as a step of training, is the program's own.
    """
    (frame, place), (calling, outer) = one, caller
    class_ = place.class_
    if class_ is None or outer.class_ is class_:
        return False
    is_module = any(isinstance(node, FUNCTIONS) and node.name == "forward" for node in class_.body)
    stack = case.finding.stack
    return is_module and stack.index(frame) + 1 == stack.index(calling)


def is_forward(frame: Frame) -> bool:
    """Whether a module's own code runs in a frame."""
    return frame.name.rpartition(".")[2] == "forward"
