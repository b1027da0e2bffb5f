"""Hands out the test files that take longest first, by the seconds that an earlier run recorded.

A plugin of pytest (``-p tests.schedule``). A file is one worker's: with a long one at the end, the
others would wait for it. ``--write-seconds`` records anew what each file takes.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SECONDS = ROOT / "tests" / "seconds.json"
"""Seconds of each file that takes one or more; the others come last."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--write-seconds``."""
    parser.addoption(
        "--write-seconds", action="store_true", help="record what each test file takes"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Record, where that is wanted, in the process that hears of every test."""
    if config.getoption("--write-seconds") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(SECONDS))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files in the order of their seconds; tests of a file stay together."""
    seconds = recorded()
    items.sort(key=lambda item: -seconds.get(item.nodeid.partition("::")[0], 0))


def recorded() -> dict[str, int]:
    """The seconds of the files that there are."""
    seconds: dict[str, int] = json.loads(SECONDS.read_text()) if SECONDS.exists() else {}
    return {file: s for file, s in seconds.items() if (ROOT / file).exists()}


class Recorder:
    """Sums up the seconds of each file, its fixtures' among them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a part of a test."""
        self._seconds[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Write what there is, the longest first; files that did not run keep their seconds."""
        known = recorded() | {file: round(s) for file, s in self._seconds.items()}
        slow = {file: s for file, s in Counter(known).most_common() if s >= 1}
        self._path.write_text(json.dumps(slow, indent=1) + "\n")
