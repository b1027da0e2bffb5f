"""Results of tests, claims and measurements as JSON lines, which tests/gpu/everything.py collects.

As a plugin of pytest (``-p tests.results``) it writes one for each test.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["FILE", "HOLDS", "MEASURED", "VIOLATED", "write"]

FILE = "MEMPROF_TEST_RESULTS"
"""The environment variable that names the file; without it nothing is written."""
HOLDS, VIOLATED, MEASURED = "holds", "violated", "measured"
"""What becomes of a claim, and a figure that nothing is claimed of; tests have pytest's words."""
_LONGEST = 300
"""Characters of a detail."""


def write(name: str, outcome: str, detail: str = "", seconds: float = 0.0) -> None:
    """Append a result; a process that is killed later has lost nothing."""
    path = os.environ.get(FILE)
    if path is None:
        return
    record = {"result": name, "outcome": outcome, "detail": detail, "seconds": round(seconds, 2)}
    with Path(path).open("a") as results:
        results.write(json.dumps(record) + "\n")


def pytest_runtest_logreport(report: Any) -> None:
    """Write the outcome of a test, and of a setup or teardown that did not pass."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return  # the process that hands tests out is told of each
    if report.when != "call" and report.outcome == "passed":
        return
    name = report.nodeid.removeprefix("tests/gpu/")
    name += " (teardown)" if report.when == "teardown" else ""
    properties = ", ".join(f"{name}={value}" for name, value in report.user_properties)
    write(name, report.outcome, _why(report) or properties, report.duration)


def _why(report: Any) -> str:
    """The assertion that failed and its line, or the reason for a skip."""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return str(report.longrepr or "").strip()[-_LONGEST:]
    text = " ".join(crash.message.split())[:_LONGEST]
    return f"{text} ({Path(crash.path).name}:{crash.lineno})"
