"""called-copies: one model is copied for each thread, and the copies are only called."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.copied_objects import copied_source, made_by_copying
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.dataflow import Flow, flow_of, flow_of_value
from memprof.source_code.program import (
    FUNCTIONS,
    Place,
    Program,
    arguments,
    assigned,
    called_name,
    calls_in,
    place_of,
)
from memprof.source_code.scopes import Scopes
from memprof.source_code.verbs import CONTAINER_METHODS, FILLING
from memprof.trace import Category, Phase
from memprof.units import format_bytes
from memprof.views.window import Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.2
"""Of the peak, in all copies."""
_FEWEST = 2
"""Copies: a single one may be an average, or what is trained later."""
_COPY = "deepcopy"
_SETTINGS = frozenset(("cpu", "cuda", "eval", "parameters", "requires_grad_", "share_memory", "to"))
"""Methods of a model that change none of its values."""
_COUNTING = frozenset(("element_size", "nelement", "numel", "requires_grad"))
"""What is asked of its parameters by who counts them."""
_STORING = CONTAINER_METHODS | FILLING
_LOOKING = frozenset(("deepcopy", "id", "isinstance", "iter", "len", "list", "next", "type", "zip"))
"""Functions that change nothing of what they are given."""
_FORWARD = "forward"


@dataclass(frozen=True, slots=True, eq=False)
class CalledCopies(Match):
    """What is copied, by which statement, and how often."""

    model: str = ""
    place: Place | None = None
    count: int = 0


class CalledCopiesRule(WasteRule[CalledCopies]):
    """`self.local.model = copy.deepcopy(self.model)` in each thread of a pool."""

    name = "called-copies"
    summary = "one model is copied again and again, and the copies are only called"
    fixes = ("share_model",)

    def matches(self, window: Window) -> Iterator[CalledCopies]:
        """Copies of one model at the peak, where nothing is trained and nothing changes them."""
        if window.peak.event < 0 or _is_training(window):
            return
        by_copying = made_by_copying(window)
        parameters = by_copying & window.at_peak & (window.category == Category.PARAMETER)
        for site in window.large_sites(parameters, _LEAST_SHARE):
            copies = _sets(window, np.flatnonzero(parameters & (window.site == site)))
            place = place_of(window.owners.sites.frames[site])
            model = copied_source(place) if place is not None else ""
            if len(copies) < _FEWEST or place is None or not model:
                continue
            if not _is_only_called(window.programs, place):
                continue
            every = by_copying & (window.site == site)
            if not _is_original_there(window, copies[0], np.flatnonzero(window.at_peak & ~every)):
                every[_set_beside(window, copies[0])] = False  # the one that is to stay
            there = every & window.at_peak
            yield CalledCopies(
                row=window.largest(there),
                rows=np.flatnonzero(there),
                nbytes=window.bytes_of(there),
                saving=window.replayed(window.whole(np.flatnonzero(every))),
                model=model,
                place=place,
                count=len(copies),
            )
            return

    def title(self, match: CalledCopies) -> str:
        """Say of what they are copies."""
        return f"are {match.count} copies of `{match.model}`, which are only called"

    def advice(self, match: CalledCopies, case: Case) -> Iterator[Advice]:
        """Call the model itself."""
        why = (
            f"{match.count} copies of `{match.model}` take {format_bytes(match.nbytes)}, and "
            f"nothing changes any of them: call `{match.model}` itself. In `eval()` and without "
            "gradients a forward pass writes nothing into a model, so threads can share it."
        )
        typed = _without_copy(match.place) if match.place is not None else ""
        yield Advice("share_model", why, case.site, typed=typed)


def _is_training(window: Window) -> bool:
    """Whether a backward pass or an optimizer runs: then copies are of different moments."""
    trained = (window.phase == Phase.BACKWARD) | (window.category == Category.OPTIMIZER_STATE)
    return bool(trained.any())


def _sets(window: Window, rows: Ints) -> list[Ints]:
    """The parameters of each model, where all have parameters of the same sizes; else none."""
    names = np.array([name.partition(".")[0] for name in window.owners.module.names])
    of_model = names[window.module[rows]]
    sets = [rows[of_model == model] for model in np.unique(of_model) if model]
    sizes = [Counter(window.lives.requested[one].tolist()) for one in sets]
    return sets if sizes and all(one == sizes[0] for one in sizes) else []


def _is_original_there(window: Window, copy: Ints, others: Ints) -> bool:
    """Whether what they were copied from is there as well, by the sizes of its parameters."""
    requested = window.lives.requested
    return Counter(requested[copy].tolist()) <= Counter(requested[others].tolist())


def _set_beside(window: Window, copy: Ints) -> Ints:
    """One copy with its buffers: what its model has."""
    names = np.array([name.partition(".")[0] for name in window.owners.module.names])
    model = names[window.module[copy[0]]]
    of_model: Ints = np.flatnonzero(names[window.module] == model)
    return of_model


def _is_only_called(programs: Sequence[Program], place: Place) -> bool:
    """Whether all that is done with what a statement copies, or is copied from, is to call it.

    A forward pass of the program's own that writes into its module needs a module of its own.
    """
    copies = [call for call in calls_in(place.statement, _COPY) if call.args]
    if len(copies) != 1 or any(map(_writes_in_forward, (place.program, *programs))):
        return False
    flow = flow_of_value(programs, place, copies[0], through=False)
    origin = flow_of(programs, place, ast.unparse(copies[0].args[0]), through=False)
    if any(one.is_lost or _is_changed(one) for one in (flow, origin)):
        return False
    return any(
        isinstance(node, ast.Call) and flow.carries(node.func, scopes)
        for node, scopes in flow.source.nodes
    )


def _is_changed(flow: Flow) -> bool:
    """Whether something may change a model that flows: then copies of it may differ."""
    return any(_may_change(flow, node, scopes) for node, scopes in flow.source.nodes)


def _may_change(flow: Flow, node: ast.AST, scopes: Scopes) -> bool:
    """Whether a node may change a model that flows, or let something change it."""
    if isinstance(node, ast.Attribute) and flow.carries(node.value, scopes):
        return node.attr not in _SETTINGS | _COUNTING | _STORING
    if not isinstance(node, ast.Call) or called_name(node) in _LOOKING | _STORING:
        return False
    if not any(flow.carries(one, scopes) for one in arguments(node)):
        return False
    return not flow.source.functions.get(called_name(node))


def _writes_in_forward(program: Program) -> bool:
    """Whether a `forward` of a file sets an attribute: two threads would write over each other."""
    return any(
        isinstance(target, ast.Attribute)
        or isinstance(getattr(target, "value", None), ast.Attribute)
        for node in program.nodes
        if isinstance(node, FUNCTIONS) and getattr(node, "name", "") == _FORWARD
        for inner in ast.walk(node)
        for target, _ in assigned(inner)
    )


def _without_copy(place: Place) -> str:
    """The statement with the model itself where its copy was."""
    (copy,) = [call for call in calls_in(place.statement, _COPY) if call.args]
    return ast.unparse(place.statement).replace(ast.unparse(copy), ast.unparse(copy.args[0]))


RULE = CalledCopiesRule()
