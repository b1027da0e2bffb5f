"""The leaking programs beside the repository, on a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest


def test_leaks_of_the_corpus_are_found_on_cuda(shared, tmp_path):
    script = shared / "leak_corpus" / "score.py"
    if not script.is_file():
        pytest.skip("needs ../shared/leak_corpus beside the repository")
    result = tmp_path / "score.json"
    done = subprocess.run(
        [sys.executable, script, "--json", result],
        env=os.environ | {"CASE_DEVICE": "cuda"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.is_file(), done.stderr
    assert len(json.loads(result.read_text())) >= 1
    assert done.returncode == 0, done.stdout[-2000:]
