"""Tensors that a name keeps after their last use: until replaced, or through another pass."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.analysis.suspicion import Pattern, Suspicion
from memprof.source_code.bindings import Binding, binding_of, handed_on
from memprof.source_code.program import (
    FUNCTIONS,
    bound_names,
    calls_in,
    loaded_names,
    place_of,
)
from memprof.source_code.verbs import FILLING
from memprof.trace import Category, Frame, Phase
from memprof.views.peak_without import Saving
from memprof.views.window import Bools, Ints, Window

__all__ = ["kept_exception", "lingering", "successors"]

_LEAST_SHARE_OF_STEPS = 0.4
_LEAST_TIMES = 2
_INHERENT = (Category.GRADIENT,)
"""What autograd replaces by itself."""


@dataclass(frozen=True, slots=True, eq=False)
class _Replaced:
    """Lifetimes that ended only after the same line had made their replacement."""

    rows: Ints
    next_alloc: Ints


def lingering(window: Window) -> Iterator[Suspicion]:
    """Values that live on in a name until the name is bound again."""
    found = _replaced(window)
    if not len(found.rows):
        return
    candidates = [*_by_rebinding(window, found), *_through_other_pass(window, found)]
    candidates.sort(key=lambda s: -s.certainty * (s.saving.bytes if s.saving else 0))
    yield from candidates[:2]


def successors(window: Window) -> tuple[Ints, Ints]:
    """Rows made in steps, and the row that the same stack made in its next step; -1 for none.

    Where a stack makes several in a step, the n-th one is followed by the n-th one.
    """
    lives = window.lives
    rows = np.flatnonzero((lives.alloc >= 0) & (window.made_in >= 0))
    if not len(rows):
        return rows, rows
    stack, step = lives.stack[rows].astype(np.int64), window.made_in[rows]
    order = np.lexsort((lives.alloc[rows], step, stack))
    rows, stack, step = rows[order], stack[order], step[order]
    begins = np.ones(len(rows), dtype=bool)
    begins[1:] = (stack[1:] != stack[:-1]) | (step[1:] != step[:-1])
    start = np.maximum.accumulate(np.where(begins, np.arange(len(rows)), 0))
    number = np.arange(len(rows)) - start
    by_number = np.lexsort((step, number, stack))
    following = np.full(len(rows), -1, dtype=np.int64)
    a, b = by_number[:-1], by_number[1:]
    same = (stack[a] == stack[b]) & (number[a] == number[b])
    following[a[same]] = rows[b[same]]
    return rows, following


def _replaced(window: Window) -> _Replaced:
    rows, following = successors(window)
    rows, following = rows[following >= 0], following[following >= 0]
    lives = window.lives
    next_alloc = lives.alloc[following]
    late = (lives.free[rows] > next_alloc) & (window.freed_in[rows] == window.made_in[following])
    late &= ~np.isin(window.category[rows], _INHERENT)
    late &= _usually(lives.stack[rows], late)
    return _Replaced(rows[late], next_alloc[late])


def _usually(stack: Ints, late: Bools) -> Bools:
    """Whether it happens to most of what the same stack makes, and more than once."""
    times = np.bincount(stack, weights=late)
    of = np.bincount(stack)
    usual: Bools = ((times >= _LEAST_TIMES) & (times >= _LEAST_SHARE_OF_STEPS * of))[stack]
    return usual


def _by_rebinding(window: Window, found: _Replaced) -> Iterator[Suspicion]:
    """Ended when the replacement began to exist, and if nothing reads it, at the step's end."""
    rows = found.rows
    # Both are there for a moment even in ``x = f(x)``: that much is needed.
    over = found.next_alloc + 1
    saving, certainty = window.replayed(window.ended(rows, over)), 0.75
    useless = rows[(over <= window.peak.event) & (window.lives.free[rows] > window.peak.event)]
    anchor = window.main_site(_mask(window, useless if len(useless) else rows))
    binding = _binding(window, useless if len(useless) else rows, anchor)
    starts = [window.first_event.get(int(step) + 1, -1) for step in window.made_in[rows]]
    if min(starts) >= 0 and not (binding is not None and binding.needs_old):
        at_end = window.replayed(window.ended(rows, np.array(starts, dtype=np.int64) - 1))
        if at_end.bytes > 1.5 * saving.bytes:
            saving, certainty = at_end, 0.6 if binding is not None else 0.45
    yield _suspicion(window, rows, anchor, saving, certainty, binding)


def _binding(window: Window, rows: Ints, anchor: int) -> Binding | None:
    """The binding of the largest tensors; of the first stack that has one."""
    order = rows[np.argsort(-window.lives.size[rows], kind="stable")]
    stacks = [window.lives.stack[anchor], *window.lives.stack[order[:200]]]
    for stack in dict.fromkeys(int(s) for s in stacks):
        binding = binding_of(window.trace.stack(stack))
        if binding is not None:
            return binding
    return None


def _suspicion(
    window: Window,
    rows: Ints,
    anchor: int,
    saving: Saving,
    certainty: float,
    binding: Binding | None,
) -> Suspicion:
    at_peak = rows[window.at_peak[rows]]
    facts: dict[str, float | int | str | bool] = {}
    name = ""
    if binding is not None:
        facts |= {"target": binding.target, "binding_file": binding.place.program.filename}
        facts |= {"binding_line": binding.place.line, "needs_old": binding.needs_old}
        name = f" in `{binding.target}`"
    facts["raises"] = _is_raised_through(window.user_frames(window.stack(anchor)))
    facts["model"] = bool(window.owned[rows].sum() * 2 > len(rows))
    return Suspicion(
        Pattern.LINGERING,
        anchor,
        rows,
        certainty,
        f"live on{name} until their replacement is there",
        window.bytes_of(_mask(window, at_peak)) or saving.bytes,
        saving,
        facts,
    )


def _mask(window: Window, rows: Ints) -> Bools:
    mask = np.zeros(len(window.lives), dtype=bool)
    mask[rows] = True
    return mask


def _is_raised_through(frames: Sequence[Frame]) -> bool:
    """Whether the stack runs through a ``try`` whose handlers keep the exception."""
    return any(kept_exception(frame) is not None for frame in frames)


def kept_exception(frame: Frame) -> ast.stmt | None:
    """The statement of a handler around a frame's line that stores the exception somewhere."""
    place = place_of(frame)
    for node in reversed(place.around if place is not None else ()):
        if isinstance(node, FUNCTIONS):
            return None
        if isinstance(node, ast.Try) and any(_inside(s, frame.line) for s in node.body):
            for handler in node.handlers:
                found = _stores_exception(handler)
                if found is not None:
                    return found
    return None


def _stores_exception(handler: ast.ExceptHandler) -> ast.stmt | None:
    for block in handler.body:
        for statement in ast.walk(block):
            if not isinstance(statement, (ast.Assign, ast.Expr)):
                continue
            values = [statement.value]
            if isinstance(statement, ast.Expr):  # errors.append(error)
                kept = calls_in(statement, *FILLING)
                values = [argument for call in kept for argument in call.args]
            if any(_is_exception(value, handler.name) for value in values):
                return statement
    return None


def _is_exception(value: ast.expr, name: str | None) -> bool:
    if name and name in _plain_names(value):
        return True
    if isinstance(value, ast.Call):
        return False
    attributes = [n.attr for n in ast.walk(value) if isinstance(n, ast.Attribute)]
    return "__traceback__" in attributes


def _plain_names(value: ast.expr) -> set[str]:
    """Names whose objects a value keeps; ``str(e)`` keeps nothing of ``e``."""
    if isinstance(value, ast.Call):
        return set()
    if isinstance(value, (ast.Tuple, ast.List)):
        return set().union(*map(_plain_names, value.elts))
    return loaded_names(value)


def _inside(node: ast.AST, line: int) -> bool:
    return getattr(node, "lineno", 0) <= line <= (getattr(node, "end_lineno", None) or 0)


def _through_other_pass(window: Window, found: _Replaced) -> Iterator[Suspicion]:
    """What is there at the peak, in a call made later from a function that no longer reads it."""
    rows = found.rows[window.at_peak[found.rows]]
    rows = rows[window.freed_in[rows] > window.step_of_event[max(window.peak.event, 0)]]
    rows = rows[~_backward_between(window, rows, window.peak.event)]
    stack = window.trace.stack(int(window.trace.events.stack[window.peak.event]))
    kept: list[int] = []
    place = None
    for row in rows.tolist():
        keeper = _unread_later(window.stack(row), stack)
        if keeper is not None:
            kept.append(row)
            place = place or keeper
    if not kept or place is None:
        return
    picked = np.array(kept, dtype=np.int64)
    gone = np.full(len(picked), window.peak.event - 1)
    saving = _until_peak_passes(window, picked, gone)
    yield _suspicion(window, picked, window.main_site(_mask(window, picked)), saving, 0.8, place)


def _until_peak_passes(window: Window, rows: Ints, gone: Ints) -> Saving:
    """The peak without them, and without their like in the other steps."""
    stacks = np.unique(window.lives.stack[rows])
    alike = np.flatnonzero(np.isin(window.lives.stack, stacks) & (window.made_in >= 0))
    offset = gone[0] - int(window.lives.alloc[rows].max())
    last = np.zeros(int(window.made_in.max()) + 2, dtype=np.int64)
    np.maximum.at(last, window.made_in[alike], window.lives.alloc[alike])
    ends = last[window.made_in[alike]] + offset
    return window.replayed(window.ended(alike, ends))


def _backward_between(window: Window, rows: Ints, event: int) -> Bools:
    """Whether a backward pass ran after the rows were made and goes on beyond ``event``."""
    backward = np.flatnonzero(window.phase_of_event == Phase.BACKWARD)
    after = np.searchsorted(backward, event)
    before_free = np.searchsorted(backward, window.lives.free[rows])
    same_step = np.zeros(len(rows), dtype=bool)
    for at, row in enumerate(rows.tolist()):
        later = backward[after : before_free[at]]
        steps = window.step_of_event[later]
        same_step[at] = bool((steps == window.made_in[row]).any())
    return same_step


def _unread_later(made: Sequence[Frame], now: Sequence[Frame]) -> Binding | None:
    """The line that keeps it, where both stacks share a function that reads its name no more."""
    for depth, frame in enumerate(made):
        other = next((f for f in now if (f.filename, f.name) == (frame.filename, frame.name)), None)
        place = place_of(frame)
        if other is None or place is None or other.line <= frame.line:
            continue
        for target in bound_names(place.statement):
            if isinstance(target, ast.Name) and not _read_from(place.scope, target.id, other.line):
                stored = handed_on(place, target.id) or place
                kept = bound_names(stored.statement)
                name = ast.unparse(kept[0]) if kept else target.id
                return Binding(stored, name, depth, needs_old=False)
        return None
    return None


def _read_from(scope: ast.AST, name: str, line: int) -> bool:
    """Whether a name is read at a line or below it in a function."""
    return any(
        isinstance(n, ast.Name)
        and n.id == name
        and n.lineno >= line
        and isinstance(n.ctx, (ast.Load))
        for n in ast.walk(scope)
    )
