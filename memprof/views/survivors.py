"""In which step every allocation of a device was made and in which it was freed, over all windows.

Whether what survives is a leak is judged in `rules.growth_findings`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memprof.trace import (
    EMPTY,
    NOT_RECORDED,
    SURVIVOR_AGE,
    Action,
    Category,
    Column,
    Columns,
    Tables,
    column,
)
from memprof.views.examination import DeviceExamination
from memprof.views.window import Window

__all__ = ["OUTLIVED", "Survival", "survival"]

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

OUTLIVED = 1 << 40
"""The place in which something was freed that was alive when the recording ended."""
_LITTLE = 0.01
"""Of what is given back at the end: so much may be made after it."""
_MOST_STEPS = 1 << 24
"""Of a window: more than that were not made, and a number in the file is damaged."""


@dataclass(frozen=True, slots=True, eq=False)
class StepLifetimes(Columns):
    """One row per allocation; ``allocated_in`` and ``freed_in`` are places in `Survival.steps`.

    What was there before the first window has ``allocated_in`` -1. An allocation is alive at the
    end of place ``p`` when ``allocated_in <= p < freed_in``.
    """

    window: Column = column("i4")
    """The window that it was made in, or first seen in."""
    alloc: Column = column("i8", missing=NOT_RECORDED)
    """Its event in that window; `NOT_RECORDED` for what was there when the window began."""
    free: Column = column("i8", missing=NOT_RECORDED)
    """The event that ended it, in window ``free_window``; `NOT_RECORDED` where none was seen."""
    free_window: Column = column("i4", missing=NOT_RECORDED)
    allocated_in: Column = column("i8", missing=NOT_RECORDED)
    freed_in: Column = column("i8", missing=OUTLIVED)
    address: Column = column("i8", missing=NOT_RECORDED)
    """Where it lay; `NOT_RECORDED` where addresses are laid out window by window."""
    size: Column = column("i8")
    stack: Column = column("i4")
    label: Column = column("i4")
    category: Column = column("u1")


@dataclass(frozen=True, slots=True, eq=False)
class Survival:
    """The lives of a device's allocations in units of the steps whose ends were recorded."""

    steps: Ints
    """The steps whose ends lie in a window, ascending; between windows some are missing."""
    lives: StepLifetimes
    tables: Tables

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def outlive_steps(self) -> Bools:
        """Which lives were made in a step and are there `SURVIVOR_AGE` step ends after its own."""
        birth_places, death_places = (
            self.lives.allocated_in,
            np.minimum(self.lives.freed_in, len(self)),
        )
        outlive: Bools = (birth_places >= 0) & (death_places - birth_places > SURVIVOR_AGE)
        return outlive

    def outlast(self, rows: Ints) -> Bools:
        """Which of the lives in ``rows`` were there when the last recorded step had ended.

        What a program gives back after its last step, as it leaves the function that trains, was
        no less kept.
        """
        there: Bools = self.lives.freed_in[rows] >= len(self)
        return there


def survival(device: DeviceExamination) -> Survival:
    """The lives of all in the windows of ``device``; what outlives one goes on in the next."""
    numbers: list[Ints] = [np.zeros(0, dtype=np.int64)]
    parts: list[StepLifetimes] = []
    first = 0
    for window in device.windows:
        steps, step_of = _ended_steps(device, window)
        is_last = window is device.windows[-1]
        parts.append(_lives(window, steps, step_of, first, is_last=is_last))
        numbers.append(steps)
        first += len(steps)
    tables = device.windows[0].trace.tables if device.windows else Tables()
    return Survival(np.concatenate(numbers), _join(parts, numbers[1:], tables), tables)


def _join(parts: list[StepLifetimes], numbers: list[Ints], tables: Tables) -> StepLifetimes:
    """The lives of all windows as one table, in which nothing is there twice.

    What a later window found at its start is matched with what outlived the one before, by stack,
    label (which holds the step that it was made in) and size: blocks that share all three are
    interchangeable here. What is left then may have lost its module in between, as a head that
    another one has taken the place of: by stack, step and size. What is there without a label, in a
    history that the program records, is matched by its address.
    """
    if len(parts) < 2:
        lives: StepLifetimes = StepLifetimes.concatenate(parts)
        return lives
    columns = {
        name: np.concatenate([getattr(p, name) for p in parts]) for name in StepLifetimes.names()
    }
    step_of_label = np.array([label.step for label in tables.labels] or [-1], dtype=np.int64)
    columns["made_in"] = step_of_label[columns["label"]]
    keep = np.ones(len(columns["allocated_in"]), dtype=bool)
    first_row = np.cumsum([0, *map(len, parts)])
    first_place = np.cumsum([0, *map(len, numbers)])
    for index in range(1, len(parts)):
        earlier = np.flatnonzero(
            keep[: first_row[index]] & (columns["freed_in"][: first_row[index]] == OUTLIVED)
        )
        rows = np.arange(first_row[index], first_row[index + 1])
        later = rows[columns["alloc"][rows] == NOT_RECORDED]
        left, right = _match(columns, earlier, later, "label")
        before, after = (
            unmatched[columns["made_in"][unmatched] >= 0]
            for unmatched in (
                np.setdiff1d(earlier, left, assume_unique=True),
                np.setdiff1d(later, right, assume_unique=True),
            )
        )
        moved_left, moved_right = _match(columns, before, after, "made_in")
        left, right = np.concatenate([left, moved_left]), np.concatenate([right, moved_right])
        rest = np.setdiff1d(later, right, assume_unique=True)
        there, again = _in_place(
            columns,
            np.setdiff1d(earlier, left, assume_unique=True),
            rest[columns["label"][rest] == EMPTY],
        )
        left, right = np.concatenate([left, there]), np.concatenate([right, again])
        for name in ("freed_in", "free", "free_window"):
            columns[name][left] = columns[name][right]
        _update(columns["category"], left, right)
        vanished = np.setdiff1d(earlier, left, assume_unique=True)
        columns["freed_in"][vanished] = first_place[index]  # between the windows, unseen
        keep[right] = False
    del columns["made_in"]
    return StepLifetimes(**{name: values[keep] for name, values in columns.items()})


def _match(columns: dict[str, Ints], earlier: Ints, later: Ints, by: str) -> tuple[Ints, Ints]:
    """Rows of ``earlier`` and ``later`` that are the same allocations, pair by pair."""
    keys = [
        np.stack([columns[n][rows].astype(np.int64) for n in ("stack", by, "size")], 1)
        for rows in (earlier, later)
    ]
    if not len(earlier) or not len(later):
        return earlier[:0], later[:0]
    _, number = np.unique(np.concatenate(keys), axis=0, return_inverse=True)
    number = number.reshape(-1)
    left_keys, right_keys = _rank(number[: len(earlier)]), _rank(number[len(earlier) :])
    _, left, right = np.intersect1d(left_keys, right_keys, assume_unique=True, return_indices=True)
    return earlier[left], later[right]


def _in_place(columns: dict[str, Ints], earlier: Ints, later: Ints) -> tuple[Ints, Ints]:
    """Rows of both that lie at one address, as large as before and, if it is told, of one stack."""
    earlier = earlier[columns["address"][earlier] != NOT_RECORDED]
    _, first, second = np.intersect1d(
        columns["address"][earlier], columns["address"][later], return_indices=True
    )
    left, right = earlier[first], later[second]
    stack = columns["stack"][right]
    same = (columns["size"][left] == columns["size"][right]) & (
        (stack == EMPTY) | (stack == columns["stack"][left])
    )
    return left[same], right[same]


def _update(category: Ints, left: Ints, right: Ints) -> None:
    """What is known later of the same allocations."""
    has_category = category[right] != Category.UNKNOWN
    category[left[has_category]] = category[right[has_category]]


def _rank(keys: Ints) -> Ints:
    """A distinct number for every row: its key, and how many rows before it have the same."""
    order = np.argsort(keys, kind="stable")
    sorted_keys = keys[order]
    starts = np.flatnonzero(np.r_[True, sorted_keys[1:] != sorted_keys[:-1]])
    rank = np.arange(len(keys)) - np.repeat(starts, np.diff(np.r_[starts, len(keys)]))
    numbers = np.empty(len(keys), dtype=np.int64)
    numbers[order] = (sorted_keys << 32) + rank
    return numbers


def _ended_steps(device: DeviceExamination, window: Window) -> tuple[Ints, Ints]:
    """Steps that ended while the window was open, and the step of every event.

    By the counters and labels of a recording; for a snapshot by its annotations, if it has any.
    """
    steps, labelled = device.device.steps, window.step_of_event[:-1]
    own = steps.window == window.number
    rows = own & (steps.first == steps.last)
    # Of many steps, as of loops that were guessed to be some, several have a row in common.
    if rows.any() and (2 * rows.sum() >= own.sum() or not len(labelled) or labelled[-1] < 0):
        return np.unique(steps.last[rows]), labelled
    if not len(labelled) or labelled[-1] < 0:
        return _annotated_steps(device, window)
    first, unfinished = max(int(labelled[0]), 0), int(labelled[-1])
    if unfinished - first > _MOST_STEPS:
        steps_with_events = np.unique(labelled[labelled >= 0])
        return steps_with_events[steps_with_events < unfinished], labelled
    return np.arange(first, unfinished), labelled


def _annotated_steps(device: DeviceExamination, window: Window) -> tuple[Ints, Ints]:
    nothing = np.zeros(0, dtype=np.int64)
    trace = window.trace
    if not trace.annotations or len(device.windows) > 1:
        return nothing, np.full(len(trace.events), NOT_RECORDED, dtype=np.int64)
    ends = device.steps.end_us
    place = np.searchsorted(ends, trace.events.time_us, side="left").astype(np.int64)
    return np.arange(len(ends), dtype=np.int64), np.maximum.accumulate(place)


def _last_alloc(window: Window, steps: Ints, step_of: Ints, given_back: int) -> int:
    """The last event that makes something, but for what is small beside the bytes ``given_back``.

    Of the last step: a program may print a mean of what a function has returned.
    """
    events = window.trace.events
    allocs = np.flatnonzero(events.action == Action.ALLOC)
    last = int(steps[-1]) if len(steps) else 0
    following = np.cumsum(events.size[allocs][::-1])[::-1]
    counts = (following > _LITTLE * given_back) | (step_of[allocs] < last)
    return int(allocs[counts][-1]) if counts.any() else -1


def _lives(
    window: Window, steps: Ints, step_of: Ints, first: int, *, is_last: bool
) -> StepLifetimes:
    """The lives of a window by step; in the last one what little follows ends with it."""
    lives, trace, index = window.lives, window.trace, window.number
    in_window = lives.alloc >= 0
    birth_places = np.full(len(lives), NOT_RECORDED, dtype=np.int64)
    birth_places[in_window] = first + np.searchsorted(steps, step_of[lives.alloc[in_window]])
    death_places = np.full(len(lives), OUTLIVED, dtype=np.int64)
    has_end = lives.free < len(trace.events)
    death_places[has_end] = first + np.searchsorted(steps, step_of[lives.free[has_end]])
    if is_last:  # the last step may end only as the program does, when its functions have returned
        survives = death_places - birth_places > SURVIVOR_AGE
        in_last = survives & has_end & (death_places >= first + len(steps) - 1)
        last = _last_alloc(window, steps, step_of, int(lives.size[in_last].sum()))
        older = (lives.free > last) & survives
        at_end = older & has_end
        if 2 * lives.size[at_end].sum() > lives.size[older & in_window].sum():
            death_places[at_end] = first + len(steps)
    return StepLifetimes(
        window=np.full(len(lives), index),
        alloc=lives.alloc,
        free=np.where(has_end, lives.free, NOT_RECORDED),
        free_window=np.where(has_end, index, NOT_RECORDED),
        allocated_in=birth_places,
        freed_in=death_places,
        address=np.full(len(lives), NOT_RECORDED) if trace.modelled else lives.address,
        # What a CPU tensor takes is what it asked for: the model's rounding is the GPU's.
        size=lives.requested if trace.modelled else lives.size,
        stack=lives.stack,
        label=lives.label,
        category=lives.category,
    )
