"""carried-state: a state is made from that of the step before, with the graphs of all steps."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.reference_chain import CYCLES, LinkKind, is_bounded, largest_container
from memprof.rules.case import Case
from memprof.rules.finding import Kind
from memprof.rules.graph_lines import (
    OF_ERRORS,
    behind_calls,
    calling_place,
    none_meanwhile,
    of_many_steps,
    on_the_way,
    running_sum,
)
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.carried_names import carried_on
from memprof.source_code.idioms import growing, is_moving_average, read_by_itself
from memprof.source_code.patch import diff, wrapped
from memprof.source_code.program import Place, calls_in, own_calls
from memprof.source_code.torch_modes import without_gradients
from memprof.source_code.values import has_no_graph, is_fresh_tensor
from memprof.source_code.verbs import JOINING
from memprof.trace import Phase

__all__ = ["RULE"]

_LEAST_SAVED = 5
"""Tensors of each pass through a recurrent layer: fewer may be what it returns."""
_OF_STEPS = ("backward", "step")
"""Methods that a loop over the steps calls, once in each."""


@dataclass(frozen=True, slots=True, eq=False)
class StateUpdate(Cause):
    """The statement that makes the next state, and where it reads the last one."""

    place: Place
    name: str
    """As written: ``self.hidden``."""
    reads: tuple[ast.expr, ...]


class CarriedState(GrowthRule[StateUpdate]):
    """`h = net(x, h)`: each step's graph hangs on that of the step before."""

    name = "carried-state"
    summary = "a state is handed from step to step with its graph"
    fixes = ("detach", "no_grad")

    def match(self, case: Case) -> StateUpdate | None:
        """A name that a call makes from itself, where the graph hangs on no container."""
        is_of_nodes = case.finding.kind is Kind.HOST_GROWTH and bool(case.finding.holders)
        if not (case.graph or is_of_nodes or _is_pass_without_holder(case)):
            return None
        in_container = of_many_steps(case) or (case.direct and LinkKind.ITEM in case.links)
        if in_container and not _falls_out(case):
            return None
        if case.links & OF_ERRORS or case.links & CYCLES:
            return None  # ``h = layer(h)`` of one forward pass, which something else keeps
        near = [*on_the_way(case), *case.assignments]
        if any(running_sum(place) is not None for place in near):
            return None
        if any(map(is_moving_average, (*case.places, *behind_calls(case)))):
            return None  # that is what goes on with its graph, whatever else a loop carries
        states = [
            StateUpdate(p, name, tuple(reads))
            for p in near
            for name, reads in read_by_itself(p)
            if _outlives_call(p, name) and not _joins_what_is_cut_off(p, name)
            if not (_is_of_other_function(p, name, case) or _is_within_step(p, name, case))
        ]
        # What a model is given and returns is carried by who calls it.
        states.sort(key=_is_given)
        state = next(iter(states), None)
        if state is None or _is_given(state):
            state = _by_other_names(near) or state
        return state or _of_any_loop(case)

    def advice(self, cause: StateUpdate, case: Case) -> Iterator[Advice]:
        """Hand it over without its graph; build none where others learn by the same statement."""
        call = calling_place(case) if _is_learned_elsewhere(cause, case) else None
        if call is not None:
            yield Advice(
                "no_grad",
                f"`{cause.name}` hands its graph from step to step, and no backward pass runs "
                "where it grows. Others may learn through it: build no graph here.",
                call,
            )
            return
        name, patch = cause.name, _between_steps(cause, case)
        yield Advice(
            "detach",
            f"`{name}` is made from the `{name}` of the step before, whose graph it keeps, and "
            "that of all steps before it: hand over "
            + (f"`{name}.detach()`." if patch else f"`{name}` detached."),
            cause.place,
            patch=patch,
        )


def _is_pass_without_holder(case: Case) -> bool:
    """Whether nobody was seen to hold what passes through a module saved, with gradients on.

    As in a job that ended before it was searched.
    """
    finding, window = case.finding, case.window
    if finding.holders or window is None or case.site is None:
        return False
    rows = np.flatnonzero(np.isin(window.lives.alloc, finding.evidence.allocs))
    rows = rows[window.module[rows] > 0]
    steps = len(np.unique(window.made_in[rows]))
    if len(rows) < _LEAST_SAVED * max(steps, 1):  # as many may be results
        return False
    return not without_gradients(finding.stack)


def _is_learned_elsewhere(state: StateUpdate, case: Case) -> bool:
    """Whether a model's forward hands it on, and backward passes of other steps may go through.

    A forward that detaches its state learns nothing over the steps. Where it grows, none ran: a
    trace that tells of no phases does not show that.
    """
    if case.trace is None or not _is_in_forward(state.place):
        return False
    has_backward_pass = any(one.phase is Phase.BACKWARD for one in case.trace.tables.labels)
    return has_backward_pass and none_meanwhile(case.window, case.finding.evidence.allocs)


def _is_of_other_function(place: Place, name: str, case: Case) -> bool:
    """Whether an attribute keeps the graph, and a variable is of a forward that does not set it."""
    functions = {id(one.function) for one in case.assignments}
    is_local = "." not in name and _is_in_forward(place)
    return is_local and bool(functions) and id(place.function) not in functions


def _is_given(state: StateUpdate) -> bool:
    """Whether a variable of a model's forward has it, and no attribute."""
    return "." not in state.name and _is_in_forward(state.place)


def _is_in_forward(place: Place) -> bool:
    return place.function is not None and place.function.name == "forward"


def _is_within_step(place: Place, name: str, case: Case) -> bool:
    """Whether the loop that makes a variable from itself runs anew in each step of another loop.

    ``for layer in self.layers: x = layer(x)`` of a function that the training loop calls.
    """
    if "." in name or place.loop is None or calls_in(place.loop, *_OF_STEPS):
        return False
    around = [one for _, one in case.frames]
    outer = [at for at, one in enumerate(around) if one.scope is place.scope]
    return any(
        one.loop is not None and one.loop is not place.loop and any(calls_in(one.loop, *_OF_STEPS))
        for one in around[outer[-1] + 1 if outer else len(around) :]
    ) and not _is_handed_on(place, name)


def _is_handed_on(place: Place, name: str) -> bool:
    """Whether a function returns what a variable is, or has the variable of a scope around it."""
    function = place.function
    return function is not None and any(
        (isinstance(node, (ast.Return, ast.Yield)) and name in _parts(node.value))
        or (isinstance(node, (ast.Global, ast.Nonlocal)) and name in node.names)
        for node in ast.walk(function)
    )


def _joins_what_is_cut_off(place: Place, name: str) -> bool:
    """Whether a statement makes a tensor longer by parts that have no graph: neither has it."""
    joins = own_calls(place.statement, *JOINING)
    joined = [getattr(call.args[0], "elts", []) for call in joins if call.args]
    parts = [part for parts in joined for part in parts if ast.unparse(part) != name]
    return bool(parts) and all(has_no_graph(place, part) for part in parts)


def _falls_out(case: Case) -> bool:
    """Whether the container is full, and grows no more: what it let go of, other graphs keep."""
    for holder in case.finding.holders[:1]:
        at = largest_container(holder.links)
        if at is not None and is_bounded(holder.links):
            limit = max(link.limit for link in holder.links[max(0, at - 1) : at + 1])
            return holder.links[at].length >= limit
    return False


def _by_other_names(near: Sequence[Place]) -> StateUpdate | None:
    """A state that the body of a loop makes in several statements; it may be what is kept."""
    carried = next((one for place in near if (one := carried_on(place)) is not None), None)
    return None if carried is None else StateUpdate(carried.place, carried.name, ())


def _outlives_call(place: Place, name: str) -> bool:
    """Whether what a statement binds can be read in the next step.

    A local variable of a function without a loop around it is gone then, unless the function hands
    it on as it is. So it is in a model's `forward`, whose loops go through layers or a sequence.
    """
    function = place.function
    if "." in name or "[" in name or function is None:
        return True
    if place.loop is not None and not (function.name == "forward" and place.class_ is not None):
        return True
    return _is_handed_on(place, name)


def _parts(value: ast.expr | None) -> Iterator[str]:
    """Return the names that a result consists of, within tuples, lists and dicts."""
    if isinstance(value, ast.Name):
        yield value.id
    elif isinstance(value, (ast.Tuple, ast.List)):
        for element in value.elts:
            yield from _parts(element)
    elif isinstance(value, ast.Dict):
        for element in value.values:
            yield from _parts(element)


def _of_any_loop(case: Case) -> StateUpdate | None:
    """The only state that a loop of the program carries, where all that is known is a graph.

    What a queue hands on, from another thread, hangs on the graph of a state that is not seen.
    """
    if case.finding.kind is not Kind.HOST_GROWTH or any(growing(one) for one in case.places):
        return None
    statements = {
        (place.program.filename, place.line): StateUpdate(place, name, tuple(reads))
        for program in case.programs
        for node in program.nodes
        if isinstance(node, ast.Assign)
        and (place := program.place(node)) is not None
        and place.loop is not None
        and (place.function is None or place.function.name != "forward")
        for name, reads in read_by_itself(place)
    }
    return next(iter(statements.values())) if len(statements) == 1 else None


def _between_steps(state: StateUpdate, case: Case) -> str:
    """The patch; empty where it might cut within a step, or the name may be no tensor.

    None at first, or the pair of states that an LSTM returns.
    """
    place = state.place
    if not state.reads:
        return ""
    within = place.loop is not None and not calls_in(place.loop, "backward")
    fresh = is_fresh_tensor(place, state.name, place.statement)
    if within or LinkKind.ITEM in case.links or not fresh:
        return ""
    edits = (edit for node in state.reads for edit in wrapped(node, ".detach()"))
    return diff(place.program, *edits)


RULE = CarriedState()
