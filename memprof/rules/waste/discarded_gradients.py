"""discarded-gradients: a backward pass runs into a model whose optimizer never reads the result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memprof.rules.case import Case
from memprof.rules.needless_graphs import given_no_graph, line_of_its_own, without_graph
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.trace import Category, Frame, Phase
from memprof.units import format_bytes
from memprof.views.owners import common_module
from memprof.views.window import Bools, Ints, Window

__all__ = ["RULE"]

_LITTLE = 0.05
"""Of the activations, that a pass frees which keeps the graph."""
_LEAST_PASSES = 2
"""Backward passes that do so: once may be how a program begins."""


@dataclass(frozen=True, slots=True, eq=False)
class Discarded(Match):
    """The graph and gradients of a model, of backward passes that train another one."""

    modules: str = ""
    """The model, as a person would name it."""
    called_at: Frame | None = None
    """The user's line from which it, and nothing that those passes train, was called."""
    is_shared: bool = False
    """That line calls what they train as well: ``critic(generator(noise))``."""


@dataclass(frozen=True, slots=True)
class _Pass:
    """One backward pass."""

    after: int
    """The last event of the one before; -1 for the first."""
    begin: int
    end: int
    """Its own first and last events."""
    trained: frozenset[int]
    """Modules that optimizers step before the next backward pass begins."""


class DiscardedGradients(WasteRule[Discarded]):
    """A discriminator's step that goes backward through the generator."""

    name = "discarded-gradients"
    summary = "a backward pass goes on into a model whose gradients are thrown away"
    fixes = ("no_grad", "detach")

    def matches(self, window: Window) -> Iterator[Discarded]:
        """Graphs of modules that run before all that is trained, and whose optimizer waits.

        Their gradients are given back before their own optimizer steps again: in every such pass.
        """
        stepped = _modules_by_step_line(window)
        if len(stepped) < 2:
            return  # every backward pass trains all that there is
        lines = _step_lines(window)
        passes = _passes(window, stepped, lines)
        for line, modules in stepped.items():
            others = [one for one in passes if one.trained and not one.trained & modules]
            graphs = _graphs_for_nothing(window, others, modules, np.flatnonzero(lines == line))
            if graphs is not None:
                yield _match(window, modules, *graphs)

    def title(self, match: Discarded) -> str:
        """Say whose they are."""
        return f"are the graph and gradients of {match.modules} in a step that trains another model"

    def advice(self, match: Discarded, case: Case) -> Iterator[Advice]:
        """Compute its output without a graph there, or cut it off."""
        site = case.site
        if match.called_at is not None:
            site = case.place_at(match.called_at.filename, match.called_at.line) or site
        why = (
            f"The backward pass goes on into {match.modules}, and what it computes there is "
            "cleared before any optimizer reads it"
        )
        if match.is_shared:
            reason = f"{why}; {format_bytes(match.nbytes)} are kept for that"
            yield Advice("detach", f"{reason}. Cut its output off.", site)
            return
        reason = f"{why}; {format_bytes(match.nbytes)} are kept for that"
        yield Advice("no_grad", f"{reason}. Call it under `no_grad()`.", site)
        cut = f"Or cut its output off: {why[:1].lower()}{why[1:]}."
        yield Advice("detach", cut, site, otherwise=True)


def _modules_by_step_line(window: Window) -> dict[int, frozenset[int]]:
    """The user's lines that step optimizers, with the modules whose states each of them made.

    Nothing where a state has no such line or no module: then it is not known what is trained.
    """
    states = np.flatnonzero(window.category == Category.OPTIMIZER_STATE)
    if not len(states) or (window.lives.alloc[states] < 0).any():
        return {}
    lines, modules = window.site[states], window.module[states]
    if not lines.all() or not modules.all():
        return {}
    return {int(one): frozenset(modules[lines == one].tolist()) for one in np.unique(lines)}


def _step_lines(window: Window) -> Ints:
    """The user's line of every event of an optimizer; 0 for other events."""
    lines = window.owners.sites.of_stack[window.trace.events.stack].astype(np.int64)
    return np.where(window.phase_of_event == Phase.OPTIMIZER, lines, 0)


def _passes(window: Window, stepped: dict[int, frozenset[int]], lines: Ints) -> list[_Pass]:
    """Every backward pass that a step of an optimizer follows, as far as its line is known.

    One that keeps the graph, as a gradient penalty does, is a part of what the next goes through.
    """
    edges = np.flatnonzero(np.diff(window.phase_of_event == Phase.BACKWARD, prepend=0, append=0))
    begins, ends = edges[::2], edges[1::2] - 1
    freeing = [_frees_graph(window, *one) for one in zip(begins, ends, strict=True)]
    begins, ends = begins[freeing], ends[freeing]
    passes, after = [], -1
    for at, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        trained = _trained_after(begins, lines, at)
        each_has_states = all(line in stepped for line in trained)
        of_lines = [stepped[line] for line in trained] if each_has_states else []
        passes.append(_Pass(after, begin, end, frozenset().union(*of_lines)))
        after = end
    return passes


def _frees_graph(window: Window, begin: int, end: int) -> bool:
    """Whether a pass lets go of more than a little of the activations that are there."""
    lives = window.lives
    there = (window.category == Category.ACTIVATION) & (lives.alloc < begin) & (lives.free >= begin)
    freed = window.bytes_of(there & (lives.free <= end))
    return freed > _LITTLE * window.bytes_of(there)


def _trained_after(begins: Ints, lines: Ints, at: int) -> list[int]:
    """The lines of the next steps of optimizers, up to the backward pass that follows these."""
    for later in range(at, len(begins)):
        upto = int(begins[later + 1]) if later + 1 < len(begins) else len(lines)
        steps = np.unique(lines[int(begins[later]) : upto])
        if steps.any():
            return [int(line) for line in steps if line]
    return []


def _graphs_for_nothing(
    window: Window, passes: list[_Pass], modules: frozenset[int], steps: Ints
) -> tuple[Ints, Ints, frozenset[int]] | None:
    """Activations and gradients of modules in passes that train others, and what these train.

    None where one such gradient is read by a step of their own after all. The passes after their
    last step, of which the recording shows no end, are taken to end as those before them did.
    """
    lives = window.lives
    own = np.isin(window.module, list(modules))
    gradients = np.flatnonzero(own & (window.category == Category.GRADIENT))
    inside = _near(window, modules)
    forward = {trained: _forward_labels(window, trained) for trained in {p.trained for p in passes}}
    graphs, discarded, decided = [], [], 0
    for one in passes:
        there = gradients[(lives.alloc[gradients] <= one.end) & (lives.free[gradients] > one.end)]
        if not len(there):
            continue
        until = int(lives.free[there].max())
        own_steps = steps[steps > one.end]
        if len(own_steps) and own_steps[0] < until:
            return None
        is_decided = bool(len(own_steps)) or until < window.events
        graph = _graph_of(window, one, inside, forward[one.trained])
        if graph is None and is_decided:
            return None
        if graph is None:
            continue
        decided += is_decided
        graphs.append(graph)
        within = (lives.alloc >= one.begin) & (lives.alloc <= one.end)
        discarded.append(np.union1d(there, np.flatnonzero(own & within)))
    if decided < _LEAST_PASSES or not any(len(graph) for graph in graphs):
        return None
    trained = frozenset().union(*(one.trained for one in passes))
    return np.unique(np.concatenate(graphs)), np.unique(np.concatenate(discarded)), trained


def _near(window: Window, modules: frozenset[int]) -> Bools:
    """Lifetimes of those modules, and of those around them that have no parameters."""
    paths = window.owners.module.names
    around = common_module([paths[module] for module in modules])
    if not around:
        return np.isin(window.module, list(modules))
    near = [at for at, path in enumerate(paths) if f"{path}.".startswith(f"{around}.")]
    return np.isin(window.module, near)


def _forward_labels(window: Window, modules: frozenset[int]) -> Bools:
    """Which labels of the recording are of a forward pass inside one of those modules."""
    paths = {window.owners.module.names[module] for module in modules}
    return np.array(
        [
            label.phase == Phase.FORWARD and any(_contains(path, label.module) for path in paths)
            for label in window.trace.tables.labels
        ]
    )


def _graph_of(window: Window, one: _Pass, inside: Bools, within: Bools) -> Ints | None:
    """What a pass frees of activations of modules; None where a trained one may lead to them.

    One that runs before them does, but where they are known to be called with nothing that takes a
    gradient: ``critic(real)``, and then ``critic(generator(noise))``. ``within`` has the labels
    inside of what the pass trains.
    """
    lives = window.lives
    freed = (lives.free >= one.begin) & (lives.free <= one.end)
    graph = inside & freed & (lives.alloc > one.after) & (window.category == Category.ACTIVATION)
    rows = np.flatnonzero(graph)
    forward = np.flatnonzero(within[window.trace.events.label[one.after + 1 : one.begin]])
    if not len(forward):
        return None  # what it trains is called in a way that shows no module
    first = one.after + 1 + int(forward[0])
    late = rows[lives.alloc[rows] >= first]
    is_apart = len(given_no_graph(window, late, set(one.trained))) == len(late)
    return rows if is_apart else None


def _contains(path: str, module: str) -> bool:
    return f"{module}.".startswith(f"{path}.")


def _match(
    window: Window,
    modules: frozenset[int],
    graph: Ints,
    gradients: Ints,
    trained: frozenset[int],
) -> Discarded:
    rows = np.union1d(graph, gradients)
    there = rows[window.at_peak[rows]]
    names = sorted(window.owners.module.names[module] for module in modules)
    called_at, is_shared = _called_at(window, graph, modules, trained)
    around = common_module(names)
    mask = np.zeros(len(window.lives), dtype=bool)
    mask[graph] = True
    return Discarded(
        row=window.main_site(mask),
        rows=there,
        nbytes=int(window.lives.size[there].sum()),
        saving=window.replayed(without_graph(window, gradients, graph)),
        modules=f"`{around or names[0]}`",
        called_at=called_at,
        is_shared=is_shared,
    )


def _called_at(
    window: Window, graph: Ints, modules: frozenset[int], trained: frozenset[int]
) -> tuple[Frame | None, bool]:
    """The user's line from which the graph, and nothing that its passes train, was called.

    The model's own passes must not come by it. Where all such lines are in the model, it is the
    innermost one outside, by which what is trained comes as well: then True.
    """
    lives = window.lives
    learnt = (window.category == Category.ACTIVATION) & (window.freed_by == Phase.BACKWARD)
    own = np.flatnonzero(_near(window, modules) & learnt)
    of_own = np.unique(lives.stack[np.setdiff1d(own, graph)]).tolist()
    taken = {frame for stack in of_own for frame in window.trace.stack(stack)}
    line = line_of_its_own(window, graph, trained)
    if line is not None and line not in taken:
        return line, False
    stacks = [window.trace.stack(one) for one in np.unique(lives.stack[graph]).tolist()]
    shared = set(stacks[0]).intersection(*stacks) if stacks else set()
    lines = (frame for frame in window.user_frames(stacks[0]) if frame in shared - taken)
    outside = next(lines, None) if stacks else None
    return outside or line, outside is not None


RULE = DiscardedGradients()
