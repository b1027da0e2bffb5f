"""Small programs and made-up traces, recorded for the tests of rules."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch

import memprof
from memprof.loading import load
from memprof.rules.finding import Found
from memprof.rules.findings import findings
from memprof.testing import TraceBuilder, write_run

Step = Callable[[int], None]
Program = Callable[[], "Step | TraceBuilder | tuple[TraceBuilder, ...]"]
"""Builds a job and returns its step, or the traces that such a job would have left."""


def findings_of(program: Program, path: Path, steps: int = 16) -> tuple[Found, ...]:
    """What is found in a recording of ``program``.

    A program that returns a step is run on the CPU; one that returns traces is of a device.
    """
    hook = sys.excepthook  # a process group sets one, and leaves it there
    with memprof.track(path, sources=["cpu"], allowance_s=600) as tracker:
        job = program()
        if callable(job):
            for number in range(steps):
                job(number)
                tracker.step()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
        sys.excepthook = hook
    if not callable(job):
        traces = job if isinstance(job, tuple) else (job,)
        path.unlink()
        write_run(path, *(trace.build() for trace in traces))
    return findings(load(path))


def names(program: Program, path: Path) -> list[str]:
    """The rules that match a recording of ``program``."""
    return [name for one in findings_of(program, path) for name in named_by(one)]


def named_by(found: Found) -> list[str]:
    """The rule that names a finding, and those that give advice on it as well."""
    return [*dict.fromkeys([found.rule, *(remedy.rule for remedy in found.remedies)])]
