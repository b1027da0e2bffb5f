"""Many replays of the same programs, spread over the cores of the machine."""

from __future__ import annotations

import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from memprof.allocator import (
    NOTHING_CHANGED,
    AllocatorSettings,
    Changes,
    Outcome,
    Workload,
    play,
)

__all__ = ["Job", "LeastCapacity", "fitted", "played"]

WORTH_A_PROCESS = 200_000
"""Events to replay in all, below which starting processes costs more than it saves."""

_STEP = 2 << 20
"""Granularity of the least capacity: what ``cudaMalloc`` deals in."""

Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One replay of one program."""

    workload: int
    settings: AllocatorSettings
    capacity: int | None = None
    changes: Changes = NOTHING_CHANGED
    afresh: bool = False


@dataclass(frozen=True, slots=True)
class LeastCapacity:
    """The least memory under which a program runs to its end."""

    bytes: int
    retries: int


def played(
    workloads: Sequence[Workload], jobs: Sequence[Job], workers: int | None
) -> list[Outcome]:
    """The outcomes of ``jobs``, in their order."""
    return _spread(workloads, _play, jobs, workers)


def fitted(
    workloads: Sequence[Workload], jobs: Sequence[Job], workers: int | None
) -> list[LeastCapacity]:
    """For each job the least capacity at which its program does not run out of memory."""
    return _spread(workloads, _least, jobs, workers)


def _play(workloads: Sequence[Workload], job: Job) -> Outcome:
    return _at(workloads, job, job.capacity)


def _at(workloads: Sequence[Workload], job: Job, capacity: int | None) -> Outcome:
    workload = workloads[job.workload]
    return play(workload, job.settings, capacity=capacity, changes=job.changes, afresh=job.afresh)


def _least(workloads: Sequence[Workload], job: Job) -> LeastCapacity:
    free = _at(workloads, job, 1 << 62)
    # Fits at the peak of what it reserves when it may; cannot do with less than it allocates.
    low, high, retries = free.peak_allocated // _STEP, -(-free.peak_reserved // _STEP), 0
    while low < high:
        middle = (low + high) // 2
        outcome = _at(workloads, job, middle * _STEP)
        if outcome.fits:
            high, retries = middle, outcome.retries
        else:
            low = middle + 1
    return LeastCapacity(high * _STEP, retries)


_shared: Sequence[Workload] = ()
"""The programs of forked workers, which inherit them: sending a million events takes longer."""


def _spread(
    workloads: Sequence[Workload],
    work: Callable[[Sequence[Workload], Task], Result],
    tasks: Sequence[Task],
    workers: int | None,
) -> list[Result]:
    global _shared  # noqa: PLW0603 - what a forked worker sees must be in the module
    count = min(workers or _cores(), len(tasks))
    events = sum(len(workload.events) for workload in workloads)
    if count < 2 or events * len(tasks) < WORTH_A_PROCESS or not _may_fork():
        return [work(workloads, task) for task in tasks]
    _shared = workloads
    try:
        with warnings.catch_warnings():
            # Workers run the model alone: no lock of another thread is ever asked for.
            warnings.simplefilter("ignore", DeprecationWarning)
            context = multiprocessing.get_context("fork")
            with ProcessPoolExecutor(count, mp_context=context) as pool:
                return list(pool.map(_work, [(work, task) for task in tasks]))
    finally:
        _shared = ()


def _cores() -> int:
    """Cores that this process may use; macOS and Windows do not say, and have no fork anyway."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def _may_fork() -> bool:
    """Not where the platform cannot, and not inside a job: torch does not survive a fork well."""
    can = "fork" in multiprocessing.get_all_start_methods() and sys.platform != "darwin"
    return can and "torch" not in sys.modules


def _work(task: tuple[Callable[[Sequence[Workload], Task], Result], Task]) -> Result:
    work, argument = task
    return work(_shared, argument)
