"""What the recording adds to the source: sizes of values, passes that freed them, callers."""

from __future__ import annotations

import ast

import numpy as np

from memprof.rules.case import Case
from memprof.source_code import call_sites
from memprof.source_code.call_sites import Handed
from memprof.source_code.program import Place
from memprof.source_code.values import is_reduction, last_binding, starts_backward
from memprof.trace import Action, Category, Frame, Phase
from memprof.views.sites import sites
from memprof.views.window import Window

__all__ = ["handed_over", "is_number", "lines_of_training", "makes_number", "serves_training"]

_ONE_NUMBER, _TWO_NUMBERS = 4, 8
"""Bytes of a single float, and of two, or of a double."""


def is_number(case: Case, place: Place, value: ast.expr) -> bool | None:
    """Whether a value in a statement is a tensor of one number; None where that is not known.

    What ``backward()`` is called on without a gradient is one, and so is ``x.mean()``.
    """
    binding = last_binding(place, value) if isinstance(value, ast.Name) else place
    if isinstance(value, ast.Name) and starts_backward(place, value.id):
        return True
    answer = makes_number(case, binding) if binding is not None else None
    if answer is None and binding is not None:
        last = value if binding is place else getattr(binding.statement, "value", None)
        plain = not isinstance(binding.statement, ast.AugAssign) and is_reduction(last)
        return True if plain else None
    return answer


def makes_number(case: Case, binding: Place) -> bool | None:
    """Whether the last thing that a statement allocates in each step is one number.

    None where that is not recorded, or may be a double or two floats.
    """
    trace, window = case.trace, case.window
    if trace is None or window is None:
        return None
    site_table = sites(trace.tables)
    lines = range(binding.line, (binding.statement.end_lineno or binding.line) + 1)
    own = [
        row
        for row, frame in enumerate(site_table.frames)
        if frame.filename == binding.program.filename and frame.line in lines
    ]
    allocs = np.isin(site_table.of_stack[trace.events.stack], own)
    rows = np.flatnonzero(allocs & (trace.events.action == Action.ALLOC))
    if not len(rows):
        return None
    steps = window.step_of_event[rows]
    last = trace.events.size[rows[np.append(steps[1:] != steps[:-1], True)]]
    if (last > _TWO_NUMBERS).any():
        return False
    return True if (last <= _ONE_NUMBER).all() else None


def serves_training(case: Case, place: Place) -> bool:
    """Whether a backward pass freed something that was made within a function."""
    window, function = case.window, place.function
    if window is None or function is None:
        return False
    lines = range(function.lineno, (function.end_lineno or function.lineno) + 1)
    trace, lives = window.trace, window.lives
    tables = trace.tables
    inside = {
        row
        for row, frame in enumerate(tables.frames)
        if frame.filename == place.program.filename and frame.line in lines
    }
    through = np.array([not inside.isdisjoint(stack) for stack in tables.stacks])
    rows = through[lives.stack] & (lives.free < window.events)
    phases = np.array([label.phase for label in tables.labels])
    return bool((phases[trace.events.label[lives.free[rows]]] == Phase.BACKWARD).any())


def lines_of_training(window: Window | None) -> set[Frame]:
    """The user's lines on the way to operators that backward passes went through.

    To what they have made gradients of, and to what they have freed.
    """
    if window is None:
        return set()
    trace = window.trace
    learnt = (window.category == Category.ACTIVATION) & (window.freed_by == Phase.BACKWARD)
    made = np.flatnonzero((window.phase == Phase.BACKWARD) & (window.lives.alloc >= 0))
    origins = trace.events.origin[window.lives.alloc[made]]
    stacks = np.unique(np.concatenate([window.lives.stack[learnt], origins])).tolist()
    return {frame for one in stacks for frame in window.user_frames(trace.stack(one))}


def handed_over(
    case: Case, place: Place | None, value: ast.expr | None, method: str = ""
) -> Handed | None:
    """The call that hands a kept value to the function that keeps it (`call_sites.handed_over`).

    Calls in functions that the tensor's stack runs through come first; a method of a container's
    name must be called on a name that the holders have.
    """
    return call_sites.handed_over(
        place,
        value,
        case.programs,
        first=[near.scope for _, near in case.frames],
        owners={link.name for holder in case.finding.holders for link in holder.links},
        method=method,
    )
