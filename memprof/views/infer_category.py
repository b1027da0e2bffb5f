"""Phases and categories guessed from stacks and lifetimes, for traces that carry no labels.

A snapshot that torch wrote knows neither. What is said here is evidence, not a record, and reports
mark it as inferred. Traces that memprof recorded are never touched.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memprof.runfile.library_workspaces import LibraryWorkspaces
from memprof.runfile.parallel_owners import ParallelOwners
from memprof.source_code.torch_calls import phase_of_stack
from memprof.trace import (
    EMPTY,
    OPTIMIZER_STEP,
    Action,
    Annotation,
    Category,
    Frame,
    Phase,
    Tables,
    Trace,
)
from memprof.views.lifetimes import Lifetimes

__all__ = ["Inferred", "infer"]

Ints = npt.NDArray[np.int64]

_STATE_MADE = re.compile(r"^(_init_group|init_state|_init_state)$")
_LEAST_SIZES = 2
"""Different sizes of gradients: a single one is met by chance."""
_MOSTLY = 0.8
"""Of the gradients' bytes, whose parameters must be there at the start."""
_MODULE_MOVE = frozenset({"convert", "_apply", "param_applied"})
_MODULE_FILE = re.compile(r"/torch/nn/modules/\w+\.py$")


@dataclass(frozen=True, slots=True, eq=False)
class Inferred:
    """One entry per lifetime: `Phase` it was made in, and `Category`."""

    phase: npt.NDArray[np.uint8]
    category: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _StackSigns:
    phase: int
    makes_state: bool
    makes_parameter: bool


def infer(trace: Trace, lives: Lifetimes) -> Inferred:
    """Phase and category of every lifetime, `Category.UNKNOWN` where the evidence does not tell."""
    signs = [_signs(trace.tables, stack) for stack in trace.tables.stacks]
    phases = np.array([s.phase for s in signs], dtype=np.uint8)
    if _python_only(trace.tables):
        phases[EMPTY] = Phase.BACKWARD  # autograd's own threads have no Python frames
    phase = phases[lives.stack]
    in_window = lives.alloc >= 0
    phase[~in_window & (lives.stack == EMPTY)] = Phase.UNKNOWN
    _optimizer_by_time(trace, lives, phase)
    state = np.array([s.makes_state for s in signs])[lives.stack]
    parameter = np.array([s.makes_parameter for s in signs])[lives.stack]
    category = _categories(trace, lives, phase, phases)
    category[state] = Category.OPTIMIZER_STATE
    category[parameter & (phase != Phase.FORWARD)] = Category.PARAMETER
    _model_before_recording(trace, lives, category)
    parallel, tables = ParallelOwners(), trace.tables
    parallel.add(0, tables.frames, 0, tables.stacks)
    category = parallel.categories(category, lives.stack)
    workspaces = LibraryWorkspaces()
    workspaces.add(0, tables.frames, 0, tables.stacks)
    category = workspaces.categories(
        category, lives.size, lives.stack, in_window & (phase == Phase.BACKWARD)
    )
    return Inferred(phase, category)


def _signs(tables: Tables, stack: tuple[int, ...]) -> _StackSigns:
    frames = [tables.frames[i] for i in stack]
    phase = phase_of_stack(frames)
    in_optimizer = phase == Phase.OPTIMIZER
    return _StackSigns(
        phase=phase,
        makes_state=in_optimizer and any(_STATE_MADE.match(f.name) for f in frames),
        makes_parameter=any(_makes_parameter(f) for f in frames),
    )


def _makes_parameter(frame: Frame) -> bool:
    path = frame.filename.replace("\\", "/")
    if not _MODULE_FILE.search(path):
        return False
    return frame.name in _MODULE_MOVE or frame.name in ("__init__", "reset_parameters")


def _python_only(tables: Tables) -> bool:
    """Stacks were recorded, and without C++ frames (which would show the autograd engine)."""
    return len(tables.stacks) > 1 and not any("::" in frame.name for frame in tables.frames)


def _optimizer_by_time(trace: Trace, lives: Lifetimes, phase: npt.NDArray[np.uint8]) -> None:
    """Allocations inside an ``Optimizer.step#…`` annotation, whatever their stack says."""
    steps = [a for a in trace.annotations if _is_optimizer_step(a)]
    if not steps:
        return
    in_window = np.flatnonzero(lives.alloc >= 0)
    time = trace.events.time_us[lives.alloc[in_window]]
    starts = np.array([a.start_us for a in steps])
    ends = np.array([a.end_us for a in steps])
    slot = np.searchsorted(starts, time, side="right") - 1
    inside = (slot >= 0) & (time <= ends[slot])
    phase[in_window[inside]] = Phase.OPTIMIZER


def _is_optimizer_step(annotation: Annotation) -> bool:
    whole = 0 <= annotation.start_us <= annotation.end_us
    return whole and annotation.name.startswith(OPTIMIZER_STEP)


def _categories(
    trace: Trace, lives: Lifetimes, phase: npt.NDArray[np.uint8], phases: npt.NDArray[np.uint8]
) -> npt.NDArray[np.uint8]:
    """By when a thing was made and what went on when it died."""
    allocs = np.flatnonzero(trace.events.action == Action.ALLOC)
    in_window = lives.alloc >= 0
    forward = phase == Phase.FORWARD
    phase_of = phases[trace.events.stack[allocs]]
    made_here = np.zeros(len(trace.events) + 1, dtype=np.uint8)
    made_here[lives.alloc[in_window]] = phase[in_window]  # by time as well as by stack
    category = np.zeros(len(lives), dtype=np.uint8)
    outlives = _outlives(lives, allocs[phase_of == Phase.BACKWARD], len(trace.events))
    outlives |= _outlives(
        lives, np.flatnonzero(trace.events.action == Action.OOM), len(trace.events)
    )
    category[forward] = np.where(outlives[forward], Category.ACTIVATION, Category.TEMPORARY)
    for own, kind in (
        (Phase.BACKWARD, Category.GRADIENT),
        (Phase.OPTIMIZER, Category.OPTIMIZER_STATE),
    ):
        mask = phase == own
        # Gone before anything else was allocated. What a backward pass leaves may be dropped at
        # once, by ``zero_grad``: there it must have gone before the next allocation of the pass.
        others = allocs[made_here[allocs] != own]
        passing = _next(others, lives.alloc) > lives.free
        passing &= lives.free < len(trace.events)
        if own == Phase.BACKWARD:
            after = np.minimum(_next(allocs, lives.free), len(trace.events))
            passing &= made_here[after] == own
        category[mask] = np.where(passing[mask], Category.TEMPORARY, kind)
    return category


def _outlives(lives: Lifetimes, marks: Ints, events: int) -> npt.NDArray[np.bool_]:
    """Alive at a mark that came after it was made, or to the end of the trace."""
    alive: npt.NDArray[np.bool_] = (_next(marks, lives.alloc) < lives.free) | (lives.free == events)
    return alive


def _model_before_recording(
    trace: Trace, lives: Lifetimes, category: npt.NDArray[np.uint8]
) -> None:
    """Blocks that were there at the start, and are as large as gradients are, one for one.

    They are the parameters of those gradients. Where an optimizer has state, a size must be one of
    its states' as well; what is left of the sizes, two or three times as often, is such state.
    """
    gradients = category == Category.GRADIENT
    if not gradients.any():
        return
    there = gradients & lives.alive_at(_fullest(trace, lives, gradients))
    of_model = Counter(lives.requested[there].tolist())
    states = set(lives.requested[category == Category.OPTIMIZER_STATE].tolist())
    if states:
        of_model = Counter({s: n for s, n in of_model.items() if s in states})
    early = np.flatnonzero((lives.alloc < 0) & (category == Category.UNKNOWN))
    rows_by_size: dict[int, list[int]] = defaultdict(list)
    for row in early.tolist():
        rows_by_size[int(lives.requested[row])].append(row)
    rows_of_model = {size: rows_by_size[size] for size in of_model if size in rows_by_size}
    shared = sum(size * min(len(rows), of_model[size]) for size, rows in rows_of_model.items())
    if len(rows_of_model) < _LEAST_SIZES or shared < _MOSTLY * sum(
        s * n for s, n in of_model.items()
    ):
        return  # sizes that others happen to have too, or the model came later
    for size, rows in rows_of_model.items():
        number = of_model[size]
        category[rows[:number]] = Category.PARAMETER
        surplus = rows[number:]
        if not states and len(surplus) in (number, 2 * number):
            category[surplus] = Category.OPTIMIZER_STATE


def _fullest(trace: Trace, lives: Lifetimes, mask: npt.NDArray[np.bool_]) -> int:
    """The event after which the lifetimes in a mask have the most bytes."""
    change = np.zeros(len(trace.events) + 2, dtype=np.int64)
    np.add.at(change, np.clip(lives.alloc[mask] + 1, 0, None), lives.size[mask])
    np.add.at(change, lives.free[mask] + 1, -lives.size[mask])
    return int(np.cumsum(change).argmax()) - 1


def _next(marks: Ints, moments: Ints) -> Ints:
    """The first mark after each moment; a number beyond every event where there is none."""
    padded = np.append(marks, np.iinfo(np.int64).max)
    return padded[np.searchsorted(marks, moments, side="right")]
