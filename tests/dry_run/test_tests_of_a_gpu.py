"""The tests of a GPU pass on a simulated one, so that no change breaks them unseen."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("native", ["0", "1"], ids=["python", "native"])
def test_all_of_them_pass_with_two_devices(dry_run, native):
    """Without the leaking programs, some of which need values that are computed."""
    done = dry_run(
        *("--gpu", "8GiB", "--gpus", 2, "--no-record", sys.executable, "-m", "pytest", "-q"),
        *("-n", 2, "-p", "no:cacheprovider", "tests/gpu"),
        *("--deselect", "tests/gpu/test_leak_corpus.py"),
        cwd=ROOT,
        MEMPROF_NATIVE=native,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 100
