"""Passes through a model whose activations outlive a backward pass that did not go through them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from memprof.source_code.idioms import keyword
from memprof.source_code.program import calls_in, place_of
from memprof.trace import EMPTY, Category, Frame, Phase
from memprof.views.window import Bools, Ints, Window

__all__ = ["keeps_graph", "unlearned_models", "unvisited_passes"]

_MODULE_CALL = "_call_impl"
_MOST_VISITED = 0.1
"""Of what a pass saved, that the backward pass frees all the same: a tensor that others saved."""
_LEAST_VISITED = 0.5
"""Of what another pass through the model saved: it is what the backward pass goes through."""
_LEAST_STEPS = 2
"""In which it is so: once is no habit."""
_LEAST_ROWS = 3
"""Saved by a pass: one may be its result, which the step learns from."""
_LEAST_MODULES = 3
"""Of a model, or of a part of one, that saved something: of fewer nothing is known."""
_RETAINING = ("retain_graph", "create_graph")


@lru_cache(maxsize=1)  # three rules ask
def unvisited_passes(window: Window) -> Ints:
    """Rows that passes saved and no backward pass goes through, though it does through others.

    Of each model: the passes of lines that no step's backward pass frees anything of, while it
    frees what passes of other lines saved. Their results are only read detached, or not at all. The
    Empty where autograd was not looked at, or where a
    backward pass is asked to keep graphs.
    """
    nothing = np.zeros(0, dtype=np.int64)
    if window.owners.inferred:
        return nothing
    learns_at = dict(_single_backward_passes(window))
    lives = window.lives
    saved = (window.category == Category.ACTIVATION) & (window.phase == Phase.FORWARD)
    saved &= (window.module > 0) & ~window.has_owner & (window.made_in >= 0)
    saved &= window.freed_in - window.made_in < 2
    rows = np.flatnonzero(saved)
    begins = np.array([learns_at.get(step, -1) for step in window.made_in[rows].tolist()])
    is_there = (begins > lives.alloc[rows]) & (lives.free[rows] > begins)
    rows = rows[is_there]
    if not len(rows):
        return nothing
    is_visited = window.freed_by[rows] == Phase.BACKWARD
    roots = np.array([name.partition(".")[0] for name in window.owners.module.names])
    of_pass: defaultdict[tuple[str, tuple[Frame, ...]], list[int]] = defaultdict(list)
    callers = {int(one): _callers(window, int(one)) for one in np.unique(lives.stack[rows])}
    for number, row in enumerate(rows.tolist()):
        key = str(roots[window.module[row]]), callers[int(lives.stack[row])]
        of_pass[key].append(number)
    visited_steps: defaultdict[str, set[int]] = defaultdict(set)
    passes: list[tuple[str, Ints]] = []
    for (root, _), at in of_pass.items():
        own, visited = rows[at], is_visited[at]
        if _share(lives.size[own], visited) >= _LEAST_VISITED:
            visited_steps[root] |= set(window.made_in[own[visited]].tolist())
        elif _share(lives.size[own], visited) <= _MOST_VISITED:
            passes.append((root, own[~visited]))
    parts = [part for root, own in passes for part in _by_step(window, own, visited_steps[root])]
    if not parts:
        return nothing
    # The first steps may have been looked at less, or not at all.
    is_alike = np.isin(lives.stack, np.unique(lives.stack[np.concatenate(parts)]))
    is_alike &= (lives.alloc >= 0) & (window.freed_in - window.made_in < 2) & ~window.has_owner
    is_alike &= window.freed_by != Phase.BACKWARD
    return np.flatnonzero(is_alike)


def unlearned_models(window: Window) -> Ints:
    """Rows that models saved for which no backward pass makes anything.

    Or parts of models, one below the model itself. A backward pass went through none of it, so none
    can outlive the one that needed it. Empty where autograd was not looked at.
    """
    names = window.owners.module.names
    saved = (window.category == Category.ACTIVATION) & (window.phase == Phase.FORWARD)
    saved &= (window.module > 0) & ~window.has_owner & (window.freed_by != Phase.BACKWARD)
    rows = np.flatnonzero(saved)
    learned = np.unique(window.module[(window.phase == Phase.BACKWARD) & (window.module > 0)])
    parts: list[Ints] = []
    for depth in (1, 2) if not window.owners.inferred else ():
        of_model = np.array([".".join(name.split(".")[:depth]) for name in names])
        own = rows[~np.isin(of_model[window.module[rows]], of_model[learned])]
        for model in np.unique(of_model[window.module[own]]).tolist():
            of_one = own[of_model[window.module[own]] == model]
            if len(np.unique(window.module[of_one])) >= _LEAST_MODULES:
                parts.append(of_one)
    return np.unique(np.concatenate(parts)) if parts else np.zeros(0, dtype=np.int64)


def _by_step(window: Window, rows: Ints, visited_steps: set[int]) -> Iterator[Ints]:
    """Of one line's passes: what each step's saved; none of a single step."""
    steps = [one for one in np.unique(window.made_in[rows]).tolist() if one in visited_steps]
    if len(steps) < _LEAST_STEPS:
        return
    for step in steps:
        own = rows[window.made_in[rows] == step]
        if len(own) >= _LEAST_ROWS:
            yield own


def _share(sizes: Ints, mask: Bools) -> float:
    return float(sizes[mask].sum() / max(int(sizes.sum()), 1))


def _single_backward_passes(window: Window) -> Iterator[tuple[int, int]]:
    """Steps whose backward pass is of one line that keeps no graph, and the event it begins at."""
    events = np.flatnonzero(window.phase_of_event == Phase.BACKWARD)
    events = events[window.trace.events.stack[events] != EMPTY]
    steps = window.step_of_event[events]
    lines = {
        stack: next(iter(window.user_frames(window.trace.stack(stack))), None)
        for stack in np.unique(window.trace.events.stack[events]).tolist()
    }
    keeps = {line: line is None or keeps_graph(line) for line in set(lines.values())}
    for part in np.split(events, np.flatnonzero(np.diff(steps)) + 1) if len(events) else ():
        called_at = {lines[stack] for stack in np.unique(window.trace.events.stack[part]).tolist()}
        if len(called_at) == 1 and not any(keeps[line] for line in called_at):
            yield int(window.step_of_event[part[0]]), int(part[0])


def keeps_graph(frame: Frame) -> bool:
    """Whether the statement on a line asks a backward pass to keep its graph; so it may, unseen."""
    place = place_of(frame)
    if place is None:
        return True
    calls = calls_in(place.statement, "backward", "grad")
    return any(keyword(call, name) is not None for call in calls for name in _RETAINING)


def _callers(window: Window, stack: int) -> tuple[Frame, ...]:
    """The user's frames on the way to the outermost module that was called."""
    frames = window.trace.stack(stack)
    calls = [at for at, frame in enumerate(frames) if _MODULE_CALL in frame.name]
    return tuple(window.user_frames(frames[calls[-1] + 1 :] if calls else frames))
