"""The examples of the documentation run and print what the documentation says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"

pytest.importorskip("torch")


def test_the_holders_example_prints_what_its_page_shows() -> None:
    done = subprocess.run(
        [sys.executable, DOCS / "examples" / "holders.py"],
        capture_output=True,
        text=True,
        check=True,
    )
    shown = (DOCS / "holders.md").read_text()
    lines = done.stdout.splitlines()
    assert len(lines) > 2
    assert all(line in shown for line in lines[:2])
