"""Tensors that only the cyclic garbage collector frees: they pile up and fall, again and again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memprof.records import Finding
from memprof.run import DeviceRun
from memprof.trace import EMPTY, SURVIVOR_AGE
from memprof.views.survivors import Survival

__all__ = ["CyclicGarbage", "cyclic_garbage", "freed_by_collector"]

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_LEAST_BIRTHS = 5
_LEAST_SHARE = 1 / 3
"""Of the recorded steps: what was made in so long a stretch of them is no accident of a start."""


@dataclass(frozen=True, slots=True, eq=False)
class CyclicGarbage:
    """Allocations of one stack that outlived their step and died in collections."""

    stack: int
    rows: Ints
    """Rows of `Survival.lives`."""
    bytes_per_step: float
    most: int
    """The most bytes of them that were alive at a step's end."""


def freed_by_collector(device: DeviceRun, seen: Survival, findings: Sequence[Finding]) -> Bools:
    """Which rows of ``seen.lives`` died while the collector ran, by the times it was seen to."""
    start, end = _times(findings)
    freed = np.zeros(len(seen.lives), dtype=bool)
    if not len(start):
        return freed
    for index, trace in enumerate(device.windows):
        rows = np.flatnonzero((seen.lives.free_window == index) & (seen.lives.free >= 0))
        time = trace.events.time_us[seen.lives.free[rows]]
        at = np.searchsorted(start, time, side="right") - 1
        freed[rows] = (at >= 0) & (time <= end[at])
    return freed


def _times(findings: Sequence[Finding]) -> tuple[Ints, Ints]:
    columns: list[list[int]] = [[], []]
    for finding in findings:
        if finding.finding == "garbage":
            for column, name in zip(columns, ("start_us", "end_us"), strict=True):
                values = finding.details.get(name)
                column.extend(map(int, values) if isinstance(values, list) else ())
    length = min(map(len, columns))
    start, end = (np.array(column[:length], dtype=np.int64) for column in columns)
    order = np.argsort(start, kind="stable")
    return start[order], end[order]


def cyclic_garbage(seen: Survival, freed: Bools) -> Iterator[CyclicGarbage]:
    """Stacks whose allocations, made in many steps up to the end, wait for the collector."""
    lives = seen.lives
    old = (lives.born >= 0) & (np.minimum(lives.died, len(seen)) - lives.born > SURVIVOR_AGE)
    for stack in np.unique(lives.stack[freed & old]).tolist():
        if stack == EMPTY:
            continue
        # what a collection freed at once, or will free, waited for it like the rest
        waits = (lives.born >= 0) & (freed | (old & (lives.died > len(seen))))
        rows = np.flatnonzero(waits & (lives.stack == stack))
        births = np.unique(lives.born[rows])
        if len(births) < _LEAST_BIRTHS or not _goes_on(births, len(seen)):
            continue
        before_last = rows[lives.born[rows] < births[-1]]
        yield CyclicGarbage(
            stack=stack,
            rows=rows,
            bytes_per_step=float(lives.size[before_last].sum()) / int(births[-1] - births[0]),
            most=_most_alive(seen, rows),
        )


def _goes_on(births: Ints, length: int) -> bool:
    long = births[-1] - births[0] >= _LEAST_SHARE * length
    return bool(long and births[-1] >= (1 - _LEAST_SHARE) * length)


def _most_alive(seen: Survival, rows: Ints) -> int:
    change = np.zeros(len(seen) + 1, dtype=np.int64)
    lives = seen.lives
    np.add.at(change, np.minimum(lives.born[rows], len(seen)), lives.size[rows])
    np.add.at(change, np.minimum(lives.died[rows], len(seen)), -lives.size[rows])
    return int(np.cumsum(change).max())
