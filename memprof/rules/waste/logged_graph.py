"""logged-graph: a value that is only shown keeps the graph by which it was computed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from memprof.rules.case import Case
from memprof.rules.lifespan import FEWEST_STEPS
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.idioms import keyword
from memprof.source_code.program import (
    Place,
    arguments,
    assigned,
    bound_names,
    called_name,
    imported_by,
    loaded_names,
    place_of,
)
from memprof.source_code.scopes import qualified_name
from memprof.trace import SURVIVOR_AGE, Category, Phase
from memprof.units import format_bytes
from memprof.views.peak_without import Cuts
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE"]

_LEAST_SHARE = 0.1
"""Of the peak, that one line has in such a graph."""
_FEWEST = 2
"""Tensors of a line: once is no habit."""
_SIMPLE = (ast.AnnAssign, ast.Assign, ast.AugAssign, ast.Expr, ast.Return)


_REDUCING = frozenset(
    (
        *("amax", "amin", "logsumexp", "max", "mean", "median", "min", "nanmean", "nansum", "norm"),
        *("prod", "std", "sum", "var", "vector_norm"),
    )
)
"""Methods and functions that make less of what they are given."""
_LOSSES = frozenset(
    (
        *("binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy"),
        *("huber_loss", "kl_div", "l1_loss", "mse_loss", "nll_loss", "smooth_l1_loss"),
    )
)
"""Functions that do, unless they are given ``reduction="none"``."""


@dataclass(frozen=True, slots=True, eq=False)
class LoggedGraph(Match):
    """What the values are called, and the statement that computes them."""

    names: tuple[str, ...] = ()
    place: Place | None = None
    bound: tuple[str, ...] = ()
    """What that binds, where it is on the way to the values only."""


class _Graph(NamedTuple):
    """What a line saved, and what its function hands out that was computed of it."""

    place: Place
    names: frozenset[str]
    rows: Ints


class LoggedGraphRule(WasteRule[LoggedGraph]):
    """`return chosen, entropy`, where the loss is of `chosen` alone and `entropy` is logged."""

    name = "logged-graph"
    summary = "a value through which no backward pass goes keeps the graph that made it"
    fixes = ("no_grad",)
    yields_to = ("evaluation-graph", "old-graphs", "retained-graph", "unvisited-graph")

    def matches(self, window: Window) -> Iterator[LoggedGraph]:
        """What lines outside of modules saved, and the backward pass of their step did not free."""
        if len(window.steps) < FEWEST_STEPS or window.owners.inferred:
            return
        left = _left_by_backward(window)
        first = next(_graphs(window, left & window.at_peak, left, _LEAST_SHARE), None)
        if first is None:
            return
        function, shared = first.place.function, first.names
        graphs = [one for one in _graphs(window, left, left, 0) if one.place.function is function]
        graphs = [one for one in graphs if one.names & shared]
        for one in graphs:
            shared &= one.names
        if not shared:
            return
        rows = np.concatenate([one.rows for one in graphs])
        for_it_alone = [one for one in graphs if one.names == shared]
        alone = np.concatenate([one.rows for one in for_it_alone] or [rows[:0]])
        bound: tuple[str, ...] = ()
        place = _binding(first.place, shared)
        if for_it_alone and place is not None and isinstance(place.statement, ast.Return):
            # Where a value is handed out it may be all but made: the large part is before that.
            place = max(for_it_alone, key=lambda one: int(window.lives.size[one.rows].sum())).place
            bound = tuple(map(ast.unparse, bound_names(place.statement)))
        there = rows[window.at_peak[rows]]
        yield LoggedGraph(
            row=int(there[window.lives.size[there].argmax()]),
            rows=there,
            nbytes=int(window.lives.size[there].sum()),
            saving=window.replayed(_without_graph(window, rows, alone, first.place)),
            names=tuple(sorted(shared)),
            place=place,
            bound=bound,
        )

    def title(self, match: LoggedGraph) -> str:
        """Say what keeps them."""
        return f"are kept by the graph of {_in_words(match)}, through which no backward pass goes"

    def advice(self, match: LoggedGraph, case: Case) -> Iterator[Advice]:
        """Compute it without a graph."""
        why = (
            f"{format_bytes(match.nbytes)} wait for a backward pass through {_in_words(match)} "
            f"that does not come: compute {_on_way_in_words(match)} under `torch.no_grad()`, or of "
            "detached values."
        )
        at = match.place
        place = case.place_at(at.program.filename, at.line) if at is not None else None
        yield Advice("no_grad", why, place or case.site)


def _graphs(window: Window, mask: Bools, left: Bools, least_share: float) -> Iterator[_Graph]:
    """The lines that have so much in a mask, and whose functions had returned by then."""
    functions = _functions_that_learn(window)
    for site in window.large_sites(mask, least_share):
        frame = window.owners.sites.frames[site]
        place = place_of(frame)
        rows = np.flatnonzero(left & (window.site == site))
        if place is None or len(rows) < _FEWEST or (frame.filename, frame.name) in functions:
            continue
        names = _handed_out(place)
        if names and _is_handed_out(place, names):  # what comes last is the result itself
            rows = rows[_is_on_way(window, rows)]
        if names and len(rows):
            yield _Graph(place, names, rows)


def _is_handed_out(place: Place, names: frozenset[str]) -> bool:
    """Whether a statement binds one of the values that are handed out, as they are written."""
    return any(ast.unparse(one) in names for one in bound_names(place.statement))


def _is_on_way(window: Window, rows: Ints) -> Bools:
    """Per row whether its line made the next tensor as well; rows are in the order of making."""
    following = np.minimum(rows + 1, len(window.lives) - 1)
    is_on_way: Bools = (window.site[following] == window.site[rows]) & (following > rows)
    return is_on_way


def _in_words(match: LoggedGraph) -> str:
    return " and ".join(f"`{name}`" for name in match.names)


def _on_way_in_words(match: LoggedGraph) -> str:
    """What is to be computed without a graph."""
    if not match.bound:
        return "that"
    return f"{' and '.join(f'`{name}`' for name in match.bound)}, and what follows of it,"


def _left_by_backward(window: Window) -> Bools:
    """What autograd saved outside of modules, there after the backward pass, gone a step later."""
    lives = window.lives
    steps, step = np.unique(window.step_of_event[:-1], return_inverse=True)
    ends = np.full(len(steps), -1, dtype=np.int64)
    backward = np.flatnonzero(window.phase_of_event == Phase.BACKWARD)
    np.maximum.at(ends, step[backward], backward)
    saved = (window.category == Category.ACTIVATION) & (window.module == 0)
    saved &= (lives.alloc >= 0) & (lives.free < window.events) & (window.made_in >= 0)
    end = np.full(len(lives), -1, dtype=np.int64)
    made = lives.alloc >= 0
    end[made] = ends[step[lives.alloc[made]]]
    saved &= (lives.alloc < end) & (lives.free > end)
    saved &= window.freed_in - window.made_in <= SURVIVOR_AGE
    left: Bools = saved & (window.freed_by != Phase.BACKWARD)
    return left


def _functions_that_learn(window: Window) -> set[tuple[str, str]]:
    """Functions that run during a backward pass: their variables hold what is theirs."""
    stacks = np.unique(window.lives.stack[window.phase == Phase.BACKWARD]).tolist()
    frames = {frame for one in stacks for frame in window.user_frames(window.trace.stack(one))}
    return {(frame.filename, frame.name) for frame in frames}


def _handed_out(place: Place) -> frozenset[str]:
    """What a function hands out that is computed of what a statement binds, as it is written.

    It returns that, or keeps it in an object. Of a result of the statement's own what is saved
    counts only where a reduction makes it: it is no part of that. Empty where such a result is
    handed out as it is.
    """
    targets = bound_names(place.statement)
    if place.function is None:
        return frozenset()
    is_reduced = _is_reduced(place, getattr(place.statement, "value", None))
    own = {one.id for one in targets if isinstance(one, ast.Name)}
    if len(own) < len(targets):
        is_kept = is_reduced and all(isinstance(one, ast.Attribute) for one in targets)
        return frozenset(map(ast.unparse, targets)) if is_kept else frozenset()
    results, kept = list(_results(place)), list(_kept(place.function))
    handed_out = [*results, *(value for _, value in kept)]
    is_handed_out = any(isinstance(one, ast.Name) and one.id in own for one in handed_out)
    if not own or (is_handed_out and not is_reduced):
        return frozenset()
    computed = _computed_of(place, own)
    names = [ast.unparse(one) for one in results if computed & loaded_names(one)]
    names += [ast.unparse(one) for one, value in kept if computed & loaded_names(value)]
    return frozenset(names)


def _kept(function: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The attributes that a function binds, each with what it is bound to."""
    for node in ast.walk(function):
        for target, value in assigned(node):
            if isinstance(target, ast.Attribute) and value is not None:
                yield target, value


def _is_reduced(place: Place, value: ast.expr | None) -> bool:
    """``-(p * p.log()).sum(-1).mean()``: what went in is larger, and no part of what comes out.

    So it is of what is computed of such values alone: ``1 - x.mean().sqrt()``, ``{"x": x.std()}``.
    """
    if isinstance(value, ast.Call) and _reduces(place, value):
        return True
    if isinstance(value, ast.UnaryOp):
        parts: list[ast.expr] = [value.operand]
    elif isinstance(value, ast.BinOp):
        parts = [value.left, value.right]
    elif isinstance(value, (ast.Tuple, ast.List)):
        parts = value.elts
    elif isinstance(value, ast.Dict):
        parts = value.values
    elif isinstance(value, ast.Call):
        parts = list(arguments(value))
        if isinstance(value.func, ast.Attribute) and not qualified_name(place, value.func):
            parts.append(value.func.value)
    else:
        return False
    parts = [one for one in parts if not isinstance(one, ast.Constant)]
    return bool(parts) and all(_is_reduced(place, one) for one in parts)


def _reduces(place: Place, call: ast.Call) -> bool:
    """Whether a call makes less of what it is given."""
    name = called_name(call)
    if name in _LOSSES:
        reduction = keyword(call, "reduction")
        return getattr(reduction, "value", "") != "none"
    if name == "einsum" and call.args and isinstance(call.args[0], ast.Constant):
        return str(call.args[0].value).replace(" ", "").endswith("->")
    if name == "norm" and not qualified_name(place, call.func):
        return all(isinstance(one, ast.Constant) for one in call.args)  # `self.norm(x)` is a layer
    return name in _REDUCING


def _results(place: Place) -> Iterator[ast.expr]:
    """What a function returns, one by one where that is a tuple, a list or a dictionary.

    Or an object of a class of the program's, which is given them.
    """
    programs = [place.program, *imported_by(place.program)]
    classes = frozenset(one.name for program in programs for one in program.classes())
    for node in ast.walk(place.scope):
        if isinstance(node, ast.Return) and node.value is not None:
            yield from _entries(node.value, classes)


def _entries(value: ast.expr, classes: frozenset[str]) -> Iterator[ast.expr]:
    if isinstance(value, (ast.Tuple, ast.List)):
        parts = value.elts
    elif isinstance(value, ast.Dict):
        parts = value.values
    elif isinstance(value, ast.Call) and ast.unparse(value.func) == "dict" and value.keywords:
        parts = [one.value for one in value.keywords]
    elif isinstance(value, ast.Call) and called_name(value) in classes:
        parts = list(arguments(value))
    else:
        yield value
        return
    for one in parts:
        yield from _entries(one, classes)


def _computed_of(place: Place, names: set[str]) -> set[str]:
    """The variables that a function computes of some, those themselves among them."""
    computed = set(names)
    statements = [node for node in ast.walk(place.scope) if isinstance(node, _SIMPLE)]
    for node in sorted(statements, key=lambda one: one.lineno):
        if node.lineno >= place.line and computed & loaded_names(node):
            computed |= {one.id for one in bound_names(node) if isinstance(one, ast.Name)}
    return computed


def _binding(place: Place, results: frozenset[str]) -> Place | None:
    """The last statement of a function that binds or returns one of some results."""
    binding = [
        node
        for node in ast.walk(place.scope)
        if isinstance(node, _SIMPLE)
        and results & {*map(ast.unparse, bound_names(node)), *_returned(place, node)}
    ]
    bound = [node for node in binding if not isinstance(node, ast.Return)] or binding
    last = max(bound, key=lambda node: node.lineno, default=None)
    return place.program.place(last) if last is not None else None


def _returned(place: Place, node: ast.stmt) -> set[str]:
    if not isinstance(node, ast.Return):
        return set()
    lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
    return {ast.unparse(one) for one in _results(place) if one.lineno in lines}


def _without_graph(window: Window, rows: Ints, alone: Ints, place: Place) -> Cuts:
    """What is for the value alone goes as the function returns, the rest with the backward pass.

    What a line makes on its way goes when the line has made the next tensor of it.
    """
    others = np.setdiff1d(rows, alone)
    backward = np.flatnonzero(window.phase_of_event == Phase.BACKWARD)
    steps = window.step_of_event[backward]
    ends = backward[np.searchsorted(steps, window.made_in[others], side="right") - 1]
    outside = np.flatnonzero(~_in_function(window, place)[window.trace.events.stack])
    at = np.searchsorted(outside, window.lives.alloc[alone])
    returned = np.append(outside, window.events)[np.minimum(at, len(outside))]
    following = np.minimum(alone + 1, len(window.lives) - 1)
    returned = np.where(_is_on_way(window, alone), window.lives.alloc[following] + 1, returned)
    brief, until = window.ended_at(alone, returned), window.ended_at(others, ends)
    return Cuts(
        np.concatenate([brief.rows, until.rows]),
        np.concatenate([brief.start, until.start]),
        np.concatenate([brief.end, until.end]),
    )


def _in_function(window: Window, place: Place) -> Bools:
    """Per stack: whether a function was running."""
    function, tables = place.function, window.trace.tables
    assert function is not None
    inside = {
        row
        for row, frame in enumerate(tables.frames)
        if frame.filename == place.program.filename
        and frame.name.rpartition(".")[2] == function.name
    }
    return np.array([not inside.isdisjoint(stack) for stack in tables.stacks], dtype=bool)


RULE = LoggedGraphRule()
