"""What makes the peak: passes kept side by side, the optimizer's temporaries, one huge tensor."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

import numpy as np

from memprof.analysis.rearranged import block_names, checkpointed, one_at_a_time
from memprof.analysis.suspicion import Pattern, Suspicion
from memprof.source_code.idioms import added_by, filling, is_partly_cut
from memprof.source_code.program import (
    Place,
    bound_names,
    calls_in,
    loaded_names,
    place_of,
    root_name,
)
from memprof.trace import Action, Category, Frame
from memprof.views.window import Bools, Ints, Window

__all__ = ["peaks"]

_LEAST_BLOCKS = 4
_LEAST_ACTIVATIONS = 0.3


def peaks(window: Window) -> Iterator[Suspicion]:
    """Each reason why the highest moment is as high as it is."""
    if window.peak.event < 0:
        return
    summed = list(_summed(window))
    yield from summed
    if not summed:
        yield from _repeated_blocks(window)


def _mask(window: Window, rows: Ints) -> Bools:
    mask = np.zeros(len(window.lives), dtype=bool)
    mask[rows] = True
    return mask


def _summed(window: Window) -> Iterator[Suspicion]:
    """One line called one module several times in the step, and all its activations are there."""
    made = window.made_in == window.step_of_event[window.peak.event]
    made &= window.category == Category.ACTIVATION
    times, rows, first = _passes(window, np.flatnonzero(made & (window.module > 0)))
    # One line may well make two tensors (`table(x) + arange(n)`); repeated passes repeat the most.
    if times < 2 or 2 * window.bytes_of(_mask(window, rows)) < window.bytes_of(made):
        return
    activations = made & window.at_peak
    if not activations.any():
        return
    loops = _looping_frames(window.stack(int(rows[0])))
    if not loops:
        return
    key = int(window.lives.stack[first]), int(window.module[first])
    summing = next((place for loop in loops if (place := _sum_of_losses(loop)) is not None), None)
    facts: dict[str, float | int | str | bool] = {"times": times}
    if summing is not None:
        facts |= {"sum_file": summing.program.filename, "sum_line": summing.line}
    yield Suspicion(
        Pattern.SUMMED_LOSSES,
        window.main_site(_mask(window, rows)),
        np.flatnonzero(activations),
        0.85 if summing is not None else 0.3,
        f"are activations of {times} passes through the same module before one backward pass",
        window.bytes_of(activations),
        one_at_a_time(window, key) if summing is not None else checkpointed(window, key),
        facts,
    )


def _passes(window: Window, rows: Ints) -> tuple[int, Ints, int]:
    """Number of forward passes in the step, the rows that they made, and the first row of one.

    A pass is what makes most of the bytes again by the same stacks in the same modules; the first
    row is one that each pass makes once, or -1 where nothing is made twice. A line that runs
    several times in a pass does so a multiple of that. An operator with several results makes them
    at once: that is one time.
    """
    events = window.trace.events
    allocs = np.flatnonzero(events.action == Action.ALLOC)
    runs = np.cumsum(np.diff(events.stack[allocs], prepend=-1) != 0)
    run = runs[np.searchsorted(allocs, window.lives.alloc[rows])]
    keys = list(zip(window.lives.stack[rows].tolist(), window.module[rows].tolist(), strict=True))
    times = Counter(key for key, _ in set(zip(keys, run.tolist(), strict=True)))
    of_row = np.array([times[key] for key in keys], dtype=np.int64)
    sizes = window.lives.size[rows]
    shared = {t: int(sizes[of_row % t == 0].sum()) for t in set(times.values()) if t > 1}
    passes = max(shared, key=lambda t: (shared[t], t), default=1)
    once = rows[of_row == passes]
    first = int(once[window.lives.alloc[once].argmin()]) if passes > 1 else -1
    return passes, rows[of_row % passes == 0], first


def _looping_frames(stack: tuple[Frame, ...]) -> list[Place]:
    """The user's statements that are called in a loop, innermost first."""
    found = []
    for frame in stack:
        place = place_of(frame)
        if place is not None and place.loop is not None:
            found.append(place)
    return found


def _sum_of_losses(place: Place) -> Place | None:
    """The statement in the loop that adds to what one ``backward`` after the loop starts from."""
    loop = place.loop
    if loop is None or _goes_on(place, loop):
        return None
    started = _flows_into_backward(place.scope, loop.end_lineno or 0)
    for statement in ast.walk(loop):
        if isinstance(statement, ast.stmt) and _collecting(statement) in started:
            return place.program.place(statement)
    return None


def _goes_on(place: Place, loop: ast.AST) -> bool:
    """Whether a statement uses what the loop's round before has bound, as ``h = cell(x, h)`` does.

    The passes are then one graph, and no backward pass can begin before the last of them.
    """
    line = place.statement.lineno
    bound = [
        (statement.lineno, target.id)
        for statement in ast.walk(loop)
        if isinstance(statement, ast.stmt)
        for target in bound_names(statement)
        if isinstance(target, ast.Name)
    ]
    before = {name for at, name in bound if at < line}
    later = {name for at, name in bound if at >= line}
    return bool(loaded_names(_added(place.statement)) & (later - before))


def _added(statement: ast.stmt) -> ast.AST:
    """``loss(x)`` of ``total = total + loss(x)``; any other statement as it is."""
    added = added_by(statement) if isinstance(statement, ast.Assign) else None
    return added.value if added is not None and _collecting(statement) else statement


def _flows_into_backward(scope: ast.AST, line: int) -> set[str]:
    """Names below ``line`` from which a backward pass starts, with what they are computed from."""
    names: set[str] = set()
    for call in calls_in(scope, "backward", "grad"):
        if call.lineno > line:
            names |= loaded_names(call)
    for node in sorted(ast.walk(scope), key=lambda n: -getattr(n, "lineno", 0)):
        if not isinstance(node, ast.Assign) or node.lineno <= line:
            continue
        if any(isinstance(t, ast.Name) and t.id in names for t in bound_names(node)):
            names |= loaded_names(node.value)
    return names


def _collecting(statement: ast.stmt) -> str:
    """``total`` of ``total += loss``, ``losses`` of ``losses.append(loss)``; else empty.

    Empty as well where numbers without a graph are added.
    """
    if isinstance(statement, (ast.For, ast.AsyncFor, ast.While, ast.If, ast.With, ast.Try)):
        return ""  # what stands in its body is looked at by itself
    added, filled = added_by(statement), filling(statement)
    if added is not None:
        plain = isinstance(added.value, ast.Constant) or is_partly_cut(added.value)
        return "" if plain else root_name(added.total)
    if filled is None or filled.keyed or any(map(is_partly_cut, filled.values)):
        return ""
    return filled.container.partition(".")[0].partition("[")[0]


def _repeated_blocks(window: Window) -> Iterator[Suspicion]:
    """Activations of many modules at the peak: checkpointing keeps one block's at a time."""
    mask = window.at_peak & (window.category == Category.ACTIVATION) & (window.module > 0)
    nbytes = window.bytes_of(mask)
    if window.share(nbytes) < _LEAST_ACTIVATIONS:
        return
    names = block_names(window)
    inside = {names[module] for module in np.unique(window.module[mask])}
    blocks = {name for name in inside if "." in name} or inside  # a root around blocks is none
    if len(blocks) < _LEAST_BLOCKS:
        return
    yield Suspicion(
        Pattern.ACTIVATIONS,
        window.main_site(mask),
        np.flatnonzero(mask),
        0.5,
        f"are activations of {len(blocks)} blocks, kept for the backward pass",
        nbytes,
        checkpointed(window),
        {"blocks": len(blocks)},
    )
