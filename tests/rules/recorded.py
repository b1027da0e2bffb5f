"""Small programs and made-up traces, recorded for the tests of rules."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

import memprof
from memprof.loading import load
from memprof.records import Record, StepColumns
from memprof.rules.finding import RuleFinding
from memprof.rules.ranked_findings import findings
from memprof.testing import TraceBuilder, write_run
from memprof.views.examination import examine
from tests import forks

Step = Callable[[int], None]


@dataclass(frozen=True)
class Recording:
    """What a job would have left: traces, the counters of the first one's device, and the rest."""

    traces: tuple[TraceBuilder, ...]
    steps: StepColumns | None = None
    more: tuple[Record, ...] = ()

    def write(self, path: Path) -> Path:
        traces = (trace.build() for trace in self.traces)
        return write_run(path, *traces, steps=self.steps, more=self.more)


RECORD = """
import sys
from pathlib import Path
from tests.rules.recorded import record
from tests.unhurried import lift_limits
lift_limits()
record(program, Path(sys.argv[1]), int(sys.argv[2]))
"""
Program = Callable[[], "Step | TraceBuilder | tuple[TraceBuilder, ...] | Recording"]
"""Builds a job and returns its step, or what a recording of such a job would hold."""


def findings_of(
    program: Program, path: Path, steps: int = 16, *, is_over: bool = False
) -> tuple[RuleFinding, ...]:
    """What is found in a recording of ``program``, which it ends with where it ``is_over``.

    A program that returns a step is run on the CPU; else what it returns is the recording.
    """
    record(program, path, steps, is_over=is_over)
    return findings(load(path))


def findings_of_fork(program: Program, path: Path, steps: int = 16) -> tuple[RuleFinding, ...]:
    """What is found in a recording of ``program``, made in a process that nothing else has used.

    Some programs leave cycles behind that nothing frees, and a search comes upon them later.
    """
    code = f"from {program.__module__} import {program.__name__} as program\n" + RECORD
    done = forks.run(code, path, steps)
    assert done.returncode == 0, done.stderr
    return findings(load(path))


def record(program: Program, path: Path, steps: int = 16, *, is_over: bool = False) -> None:
    """Record a program, or write what it returns."""
    gc.collect()  # what another program has left in cycles is none of this one's
    hook = sys.excepthook  # a process group sets one, and leaves it there
    with memprof.track(path, sources=["cpu"], allowance_s=600) as tracker:
        job = program()
        if callable(job):
            # when a collection comes by itself depends on what else this process has made
            gc.disable()
            try:
                for number in range(steps):
                    job(number)
                    tracker.step()
            finally:
                gc.enable()
        if is_over:  # as `memprof run` says when the program has ended
            tracker.stop(is_over=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
        sys.excepthook = hook
    if not callable(job):
        path.unlink()
        if not isinstance(job, Recording):
            job = Recording(job if isinstance(job, tuple) else (job,))
        job.write(path)


def peak_of(path: Path) -> int:
    """The peak of allocated bytes in a recording of one device."""
    (device,) = examine(load(path)).devices
    return device.peak_allocated


def names(program: Program, path: Path) -> list[str]:
    """The rules that match a recording of ``program``."""
    return [name for one in findings_of(program, path) for name in named_by(one)]


def named_by(found: RuleFinding) -> list[str]:
    """The rule that names a finding, and those that give advice on it as well."""
    return [*dict.fromkeys([found.rule, *(remedy.rule for remedy in found.remedies)])]
