"""Tensors that only the cyclic garbage collector frees: they pile up and fall, again and again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from memprof.records import Finding
from memprof.rules.growing_groups import GrowingGroup
from memprof.run import DeviceRun
from memprof.trace import EMPTY
from memprof.views.survivors import Survival

__all__ = ["cyclic_garbage", "freed_by_collector"]

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_LEAST_BIRTHS = 5
_LEAST_SHARE = 1 / 3
"""Of the recorded steps: what was made in so long a stretch of them is no accident of a start."""
_MOST_CONFIDENCE = 0.95
_HALVED = 5
"""Steps in which it is made, by which the doubt is halved."""


def freed_by_collector(device: DeviceRun, survival: Survival, findings: Sequence[Finding]) -> Bools:
    """Which lives ended while the collector ran, by the times of its collections."""
    start, end = _times(findings)
    freed = np.zeros(len(survival.lives), dtype=bool)
    if not len(start):
        return freed
    for index, trace in enumerate(device.windows):
        rows = np.flatnonzero((survival.lives.free_window == index) & (survival.lives.free >= 0))
        time = trace.events.time_us[survival.lives.free[rows]]
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


_LEAST_TOGETHER = 3
"""Steps whose tensors wait at the same time: a program that collects after each trial has one."""


def cyclic_garbage(survival: Survival, freed: Bools) -> Iterator[GrowingGroup]:
    """Stacks whose allocations, made in many steps up to the end, wait for the collector."""
    lives = survival.lives
    old = survival.outlive_steps
    for stack in np.unique(lives.stack[freed & old]).tolist():
        if stack == EMPTY:
            continue
        # what a collection freed at once, or will free, waited for it like the rest
        waits = (lives.allocated_in >= 0) & (freed | (old & (lives.freed_in > len(survival))))
        rows = np.flatnonzero(waits & (lives.stack == stack))
        births = np.unique(lives.allocated_in[rows])
        if len(births) < _LEAST_BIRTHS or not _goes_on(births, len(survival)):
            continue
        if _most_together(lives.allocated_in[rows], lives.freed_in[rows]) < _LEAST_TOGETHER:
            continue
        before_last = rows[lives.allocated_in[rows] < births[-1]]
        yield GrowingGroup(
            stack=stack,
            rows=rows,
            places=births,
            per_step=float(lives.size[before_last].sum()) / int(births[-1] - births[0]),
            confidence=round(min(_MOST_CONFIDENCE, 1 - 0.5 ** (len(births) / _HALVED)), 3),
            every=max(1, round(float(np.median(np.diff(births))))),
            collected=True,
        )


def _most_together(allocated_in: Ints, freed_in: Ints) -> int:
    """Of how many steps tensors waited at once: of one, where each is collected before the next."""
    births, group = np.unique(allocated_in, return_inverse=True)
    ends = np.zeros(len(births), dtype=np.int64)
    np.maximum.at(ends, group, freed_in)
    waiting = np.searchsorted(births, ends) - np.arange(len(births))
    return int(waiting.max(initial=0))


def _goes_on(births: Ints, length: int) -> bool:
    long = births[-1] - births[0] >= _LEAST_SHARE * length
    return bool(long and births[-1] >= (1 - _LEAST_SHARE) * length)
