"""Activations that could be dropped after a forward pass and computed again: which, and of whom.

By the module paths of labels; where a trace has none, by the functions on its stacks. What dropping
them is worth is for a replay to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memprof.oom.stale_blocks import Moment
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.trace import Category, Frame, Phase
from memprof.views.sites import short_path

__all__ = ["Unit", "recomputable"]

Ints = npt.NDArray[np.int64]

_MOST_UNITS = 3
_CALL = "_call_impl"
"""Every call of a module goes through this function of torch's."""


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """Modules of one kind whose activations could be dropped and computed again."""

    name: str
    rows: Ints
    ends: Ints
    """The event at which the forward pass of each row's module was over."""
    bytes: int


def recomputable(moment: Moment) -> list[Unit]:
    """Kinds of modules whose activations fill the moment, most bytes first; at most three.

    A module that is still in its forward pass, or whose backward pass has begun (something of it
    was freed), keeps everything. Of each other one its last allocation stays: its output.
    """
    labelled = any(label.module for label in moment.window.trace.tables.labels)
    groups: dict[str, list[Ints]] = {}
    for name, rows in _module_calls(moment) if labelled else _function_calls(moment):
        groups.setdefault(name, []).append(rows)
    units = [unit for name, calls in groups.items() if (unit := _unit(moment, name, calls))]
    return sorted(units, key=lambda unit: -unit.bytes)[:_MOST_UNITS]


def _unit(moment: Moment, name: str, calls: list[Ints]) -> Unit | None:
    lives, rows, ends = moment.window.lives, [], []
    for call in calls:
        call_rows = call[:-1]
        if len(call_rows):
            rows.append(call_rows)
            ends.append(np.full(len(call_rows), int(lives.alloc[call[-1]])))
    if not rows:
        return None
    unit_rows = np.concatenate(rows)
    return Unit(name, unit_rows, np.concatenate(ends), int(lives.size[unit_rows].sum()))


def _module_calls(moment: Moment) -> Iterator[tuple[str, Ints]]:
    """Activations of the step's forward pass that are alive, by call of a module, in order."""
    lives, window, mine = moment.window.lives, moment.window, _activations(moment)
    labels = window.trace.tables.labels
    by_module: dict[str, list[int]] = {}
    for row in np.flatnonzero(mine & moment.alive).tolist():
        for path in _numbered_paths(labels[int(lives.label[row])].module):
            by_module.setdefault(path, []).append(row)
    running = labels[int(window.trace.events.label[moment.event])].module
    started_modules = _modules_begun(moment, mine & ~moment.alive)
    for path, rows in by_module.items():
        inside = running == path or running.startswith(f"{path}.")
        if not inside and path not in started_modules:
            yield _kind(path), np.array(sorted(rows, key=lambda r: int(lives.alloc[r])))


def _activations(moment: Moment) -> npt.NDArray[np.bool_]:
    """What the current step's forward pass made, as far as it may be kept for the backward pass."""
    lives, window = moment.window.lives, moment.window
    kinds = (int(Category.ACTIVATION), int(Category.UNKNOWN))
    mine = np.isin(window.owners.category.of, kinds)
    mine &= window.owners.phase.of == int(Phase.FORWARD)
    mine &= (lives.alloc >= 0) & (lives.alloc < moment.event)
    if moment.step >= 0:
        mine &= moment.made_in == moment.step
    return mine


def _modules_begun(moment: Moment, freed_rows: npt.NDArray[np.bool_]) -> set[str]:
    """Modules of which a backward pass has freed something."""
    lives, window = moment.window.lives, moment.window
    labels = window.trace.tables.labels
    freed_by = window.trace.events.label[np.minimum(lives.free, len(window.trace.events) - 1)]
    modules: set[str] = set()
    for row in np.flatnonzero(freed_rows).tolist():
        if labels[int(freed_by[row])].phase == Phase.BACKWARD:
            modules.update(_numbered_paths(labels[int(lives.label[row])].module))
    return modules


def _numbered_paths(path: str) -> Iterator[str]:
    """The modules on a path that are one of many: ``GPT.blocks.3`` of ``GPT.blocks.3.mlp``."""
    parts = path.split(".")
    for end, part in enumerate(parts, start=1):
        if part.isdecimal():
            yield ".".join(parts[:end])
    if not any(part.isdecimal() for part in parts) and len(parts) > 1:
        yield ".".join(parts[:2])


def _kind(path: str) -> str:
    """``GPT.blocks.3`` -> ``GPT.blocks.*``."""
    return ".".join("*" if part.isdecimal() else part for part in path.split("."))


def _function_calls(moment: Moment) -> Iterator[tuple[str, Ints]]:
    """The same by functions that modules call; only while a forward pass runs, as stacks show it.

    A call begins where the first of the function's stacks comes again; the last one still runs if
    the function is on the stack of the moment.
    """
    trace, lives = moment.window.trace, moment.window.lives
    running = _functions(trace.stack(int(trace.events.stack[moment.event])))
    if not running:
        return
    rows = np.flatnonzero(_activations(moment) & moment.alive)
    by_function: dict[tuple[str, str], list[int]] = {}
    for row in rows[np.argsort(lives.alloc[rows])].tolist():
        for function in _functions(trace.stack(int(lives.stack[row]))):
            by_function.setdefault(function, []).append(row)
    for (filename, name), own in by_function.items():
        stacks = lives.stack[own]
        begins = np.flatnonzero(stacks == stacks[0])
        calls = np.split(np.array(own), begins[1:])
        if (filename, name) in running:
            calls.pop()
        for call in calls:
            yield f"{name} ({short_path(filename)})", call


def _functions(stack: tuple[Frame, ...]) -> set[tuple[str, str]]:
    """The user's functions on a stack that run inside a call of a module."""
    calls = [i for i, frame in enumerate(stack) if frame.name == _CALL]
    inside = stack[: calls[-1]] if calls else ()
    return {(f.filename, f.name) for f in inside if frame_kind(f.filename) is FrameKind.USER}
