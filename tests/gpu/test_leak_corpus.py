"""The leaking programs beside the repository, on a GPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_leaks_of_the_corpus_are_found_on_cuda(shared, tmp_path):
    script = shared / "leak_corpus" / "score.py"
    if not script.is_file():
        pytest.skip("needs ../shared/leak_corpus beside the repository")
    if shutil.which("memprof", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("needs the command memprof beside this Python (pip install -e .)")
    jobs = str(max(2, min(8, (os.cpu_count() or 2) // 2)))
    result = tmp_path / "score.json"
    done = subprocess.run(
        [sys.executable, script, "-j", jobs, "--json", result],
        env=os.environ | {"CASE_DEVICE": "cuda"},
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout)  # the table, for whoever reads a failure
    assert done.returncode == 0, done.stderr[-2000:]
    summary = json.loads(result.read_text())["summary"]
    assert summary["errors"] == 0
    assert summary["leaks"] > 0
    assert summary["recall"] >= 90
    assert summary["false_alarms"] == 0
