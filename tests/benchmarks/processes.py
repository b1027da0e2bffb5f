"""What a program takes in a process of its own: the reports that are measured, and how."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["REPORTS", "measured"]

_REPORT = "import sys; from memprof_cli import main; main(['report', sys.argv[1], {}])"
REPORTS = {
    "memprof report --json": _REPORT.format("'--json'"),
    "memprof report -o page": _REPORT.format("'-o', sys.argv[2]"),
}
"""Programs by what they do; each is given the recording and where a page may go."""


def measured(program: str, recording: Path, page: Path) -> tuple[float, float]:
    """Seconds of wall clock, and the highest resident MiB, of a process of its own."""
    started = time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(recording), str(page)], stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{program!r} failed with {child.returncode}")
    return time.perf_counter() - started, usage.ru_maxrss / 1024
