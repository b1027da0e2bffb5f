"""Tensors that a name keeps after their last use: until replaced, or through another pass."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from memprof.analysis.savings import Saving
from memprof.analysis.scene import Bools, Ints, Scene
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


def lingering(scene: Scene) -> Iterator[Suspicion]:
    """Values that live on in a name until the name is bound again."""
    found = _replaced(scene)
    if not len(found.rows):
        return
    candidates = [*_by_rebinding(scene, found), *_through_other_pass(scene, found)]
    candidates.sort(key=lambda s: -s.certainty * (s.saving.bytes if s.saving else 0))
    yield from candidates[:2]


def successors(scene: Scene) -> tuple[Ints, Ints]:
    """Rows made in steps, and the row that the same stack made in its next step; -1 for none.

    Where a stack makes several in a step, the n-th one is followed by the n-th one.
    """
    lives = scene.lives
    rows = np.flatnonzero((lives.alloc >= 0) & (scene.made_in >= 0))
    if not len(rows):
        return rows, rows
    stack, step = lives.stack[rows].astype(np.int64), scene.made_in[rows]
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


def _replaced(scene: Scene) -> _Replaced:
    rows, following = successors(scene)
    rows, following = rows[following >= 0], following[following >= 0]
    lives = scene.lives
    next_alloc = lives.alloc[following]
    late = (lives.free[rows] > next_alloc) & (scene.freed_in[rows] == scene.made_in[following])
    late &= ~np.isin(scene.category[rows], _INHERENT)
    late &= _usually(lives.stack[rows], late)
    return _Replaced(rows[late], next_alloc[late])


def _usually(stack: Ints, late: Bools) -> Bools:
    """Whether it happens to most of what the same stack makes, and more than once."""
    times = np.bincount(stack, weights=late)
    of = np.bincount(stack)
    usual: Bools = ((times >= _LEAST_TIMES) & (times >= _LEAST_SHARE_OF_STEPS * of))[stack]
    return usual


def _by_rebinding(scene: Scene, found: _Replaced) -> Iterator[Suspicion]:
    """Ended when the replacement began to exist, and if nothing reads it, at the step's end."""
    rows = found.rows
    # Both are there for a moment even in ``x = f(x)``: that much is needed.
    over = found.next_alloc + 1
    saving, certainty = scene.replayed(scene.ended(rows, over)), 0.75
    useless = rows[(over <= scene.peak.event) & (scene.lives.free[rows] > scene.peak.event)]
    anchor = scene.main_site(_mask(scene, useless if len(useless) else rows))
    binding = _binding(scene, useless if len(useless) else rows, anchor)
    starts = [scene.first_event.get(int(step) + 1, -1) for step in scene.made_in[rows]]
    if min(starts) >= 0 and not (binding is not None and binding.needs_old):
        at_end = scene.replayed(scene.ended(rows, np.array(starts, dtype=np.int64) - 1))
        if at_end.bytes > 1.5 * saving.bytes:
            saving, certainty = at_end, 0.6 if binding is not None else 0.45
    yield _suspicion(scene, rows, anchor, saving, certainty, binding)


def _binding(scene: Scene, rows: Ints, anchor: int) -> Binding | None:
    """The binding of the largest tensors; of the first stack that has one."""
    order = rows[np.argsort(-scene.lives.size[rows], kind="stable")]
    stacks = [scene.lives.stack[anchor], *scene.lives.stack[order[:200]]]
    for stack in dict.fromkeys(int(s) for s in stacks):
        binding = binding_of(scene.trace.stack(stack))
        if binding is not None:
            return binding
    return None


def _suspicion(
    scene: Scene,
    rows: Ints,
    anchor: int,
    saving: Saving,
    certainty: float,
    binding: Binding | None,
) -> Suspicion:
    at_peak = rows[scene.at_peak[rows]]
    facts: dict[str, float | int | str | bool] = {}
    name = ""
    if binding is not None:
        facts |= {"target": binding.target, "binding_file": binding.place.program.filename}
        facts |= {"binding_line": binding.place.line, "needs_old": binding.needs_old}
        name = f" in `{binding.target}`"
    facts["raises"] = _is_raised_through(scene.user_frames(scene.stack(anchor)))
    facts["model"] = bool(scene.owned[rows].sum() * 2 > len(rows))
    return Suspicion(
        Pattern.LINGERING,
        anchor,
        rows,
        certainty,
        f"live on{name} until their replacement is there",
        scene.bytes_of(_mask(scene, at_peak)) or saving.bytes,
        saving,
        facts,
    )


def _mask(scene: Scene, rows: Ints) -> Bools:
    mask = np.zeros(len(scene.lives), dtype=bool)
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


def _through_other_pass(scene: Scene, found: _Replaced) -> Iterator[Suspicion]:
    """What is there at the peak, in a call made later from a function that no longer reads it."""
    rows = found.rows[scene.at_peak[found.rows]]
    rows = rows[scene.freed_in[rows] > scene.step_of_event[max(scene.peak.event, 0)]]
    rows = rows[~_backward_between(scene, rows, scene.peak.event)]
    stack = scene.trace.stack(int(scene.trace.events.stack[scene.peak.event]))
    kept: list[int] = []
    place = None
    for row in rows.tolist():
        keeper = _unread_later(scene.stack(row), stack)
        if keeper is not None:
            kept.append(row)
            place = place or keeper
    if not kept or place is None:
        return
    picked = np.array(kept, dtype=np.int64)
    gone = np.full(len(picked), scene.peak.event - 1)
    saving = _until_peak_passes(scene, picked, gone)
    yield _suspicion(scene, picked, scene.main_site(_mask(scene, picked)), saving, 0.8, place)


def _until_peak_passes(scene: Scene, rows: Ints, gone: Ints) -> Saving:
    """The peak without them, and without their like in the other steps."""
    stacks = np.unique(scene.lives.stack[rows])
    alike = np.flatnonzero(np.isin(scene.lives.stack, stacks) & (scene.made_in >= 0))
    offset = gone[0] - int(scene.lives.alloc[rows].max())
    last = np.zeros(int(scene.made_in.max()) + 2, dtype=np.int64)
    np.maximum.at(last, scene.made_in[alike], scene.lives.alloc[alike])
    ends = last[scene.made_in[alike]] + offset
    return scene.replayed(scene.ended(alike, ends))


def _backward_between(scene: Scene, rows: Ints, event: int) -> Bools:
    """Whether a backward pass ran after the rows were made and goes on beyond ``event``."""
    backward = np.flatnonzero(scene.phase_of_event == Phase.BACKWARD)
    after = np.searchsorted(backward, event)
    before_free = np.searchsorted(backward, scene.lives.free[rows])
    same_step = np.zeros(len(rows), dtype=bool)
    for at, row in enumerate(rows.tolist()):
        later = backward[after : before_free[at]]
        steps = scene.step_of_event[later]
        same_step[at] = bool((steps == scene.made_in[row]).any())
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
