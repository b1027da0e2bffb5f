"""What is alive at a moment and need not be: leaks, gradients already used, spare temporaries.

Rows of lifetimes and the changes of the program that would have freed them; nothing is judged here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memprof.allocator import Changes
from memprof.trace import NOT_RECORDED, Category, Phase
from memprof.views.multi_tensor import beyond_one_parameter, multi_tensor_temporaries
from memprof.views.owners import OWNED
from memprof.views.steps import step_of_event
from memprof.views.window import Window

__all__ = [
    "Moment",
    "changes_freeing",
    "left_behind",
    "main_site",
    "spare_temporaries",
    "stale_gradients",
]

Ints = npt.NDArray[np.int64]

_LEAST_STEPS = 3
"""Steps that must each have left something at a line before it is called a leak."""


@dataclass(frozen=True, slots=True, eq=False)
class Moment:
    """A window up to one event, with the step of every event and of every lifetime."""

    window: Window
    event: int
    steps: Ints
    """The step of every event: as labelled, else counted by forward passes after backward ones."""
    made_in: Ints
    """The step that made each lifetime; -1 where not known."""

    @classmethod
    def at(cls, window: Window, event: int) -> Moment:
        """The moment right after ``event``."""
        steps = step_of_event(window.trace)
        if not len(steps) or int(steps[-1]) < 0:
            steps = _steps_by_phase(window)
        lives = window.lives
        labels = np.array([label.step for label in window.trace.tables.labels], dtype=np.int64)
        by_label = labels[lives.label]
        in_window = lives.alloc >= 0
        made_in = by_label.copy()
        if len(steps):
            made_in[in_window] = np.where(
                by_label[in_window] >= 0, by_label[in_window], steps[lives.alloc[in_window]]
            )
        return cls(window, event, steps, made_in)

    @property
    def alive(self) -> npt.NDArray[np.bool_]:
        """Which lifetimes are allocated at the moment."""
        return self.window.lives.alive_at(self.event)

    @property
    def step(self) -> int:
        """The step of the moment; -1 where not known."""
        return int(self.steps[self.event]) if self.event < len(self.steps) else NOT_RECORDED


def _steps_by_phase(window: Window) -> Ints:
    """A step begins with the first forward allocation after a backward or optimizer one."""
    lives, events = window.lives, len(window.trace.events)
    in_window = np.flatnonzero(lives.alloc >= 0)
    order = in_window[np.argsort(lives.alloc[in_window])]
    phase = window.owners.phase.of[order]
    passes = np.isin(phase, (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER))
    rows, phase = order[passes], phase[passes]
    begins = np.flatnonzero((phase[1:] == Phase.FORWARD) & (phase[:-1] != Phase.FORWARD)) + 1
    if not len(begins):
        return np.full(events, NOT_RECORDED, dtype=np.int64)
    change = np.zeros(events, dtype=np.int64)
    change[lives.alloc[rows[begins]]] = 1
    return np.cumsum(change)


def left_behind(moment: Moment) -> Ints:
    """Rows of what past steps left alive, from lines that did so in three of them or more.

    Parts of the model and of the optimizer are not meant; what was there before the window counts
    where its stack goes on leaving things in it.
    """
    lives, alive = moment.window.lives, moment.alive
    of_model = np.isin(moment.window.owners.category.of, OWNED)
    past = alive & ~of_model & (moment.made_in >= 0) & (moment.made_in < moment.step - 1)
    rows = np.flatnonzero(past)
    if not len(rows):
        return rows
    pairs = np.unique(np.stack([lives.stack[rows], moment.made_in[rows]], 1), axis=0)
    stacks, counts = np.unique(pairs[:, 0], return_counts=True)
    leaking = stacks[counts >= _LEAST_STEPS]
    before = alive & ~of_model & (moment.made_in == NOT_RECORDED) & (lives.stack > 0)
    return np.flatnonzero((past | before) & np.isin(lives.stack, leaking))


def main_site(moment: Moment, rows: Ints) -> str:
    """The line that made most bytes of ``rows``; at how many others the rest was made."""
    grouping, lives = moment.window.owners.site, moment.window.lives
    total = np.bincount(grouping.of[rows], weights=lives.size[rows])
    others = int((total > 0).sum()) - 1
    lines = f" and {others} other lines" if others > 1 else " and another line" if others else ""
    return grouping.names[int(total.argmax())] + lines


def changes_freeing(moment: Moment, rows: Ints, after: Ints | None = None) -> Changes:
    """The program with ``rows`` freed after an event each, else at the end of their own step."""
    lives = moment.window.lives
    in_window = lives.alloc[rows] >= 0
    own = rows[in_window]
    if after is None:
        last = np.searchsorted(moment.steps, moment.made_in[own], side="right") - 1
    else:
        last = after[in_window]
    return Changes(
        freed=lives.alloc[own], freed_after=last, freed_initial=lives.address[rows[~in_window]]
    )


def stale_gradients(moment: Moment) -> Ints:
    """Rows of gradients of an earlier step that the optimizer has used, alive in a forward pass."""
    window, lives = moment.window, moment.window.lives
    phases = np.array([int(label.phase) for label in window.trace.tables.labels], dtype=np.int64)
    of_event = phases[window.trace.events.label]
    if moment.step < 0 or int(of_event[moment.event]) != Phase.FORWARD:
        return np.zeros(0, dtype=np.int64)
    used = np.flatnonzero(of_event[: moment.event] == Phase.OPTIMIZER)
    if not len(used) or int(moment.steps[used[-1]]) >= moment.step:
        return np.zeros(0, dtype=np.int64)
    gradient = window.owners.category.of == int(Category.GRADIENT)
    rows = gradient & moment.alive & (lives.alloc >= 0) & (lives.alloc < int(used[-1]))
    return np.flatnonzero(rows)


def spare_temporaries(moment: Moment) -> Ints:
    """Rows of what the optimizer holds for all parameters at once, but for one parameter's."""
    window, lives = moment.window, moment.window.lives
    rows = np.flatnonzero(multi_tensor_temporaries(window) & moment.alive & (lives.alloc >= 0))
    return beyond_one_parameter(window, rows, moment.made_in[rows])
