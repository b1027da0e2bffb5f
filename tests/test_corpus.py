"""memprof over programs made from reported bugs: every leak found, no alarm on what is healthy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the corpus is torch's")

ROOT = Path(__file__).resolve().parent.parent
SCORE = ROOT.parent / "shared" / "leak_corpus" / "score.py"

pytestmark = pytest.mark.skipif(
    not SCORE.exists(), reason="the corpus of reported bugs is not beside the repository"
)


def score(path, *options):
    command = [sys.executable, str(SCORE), "--json", str(path), *options]
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text())


@pytest.mark.parametrize("name", ["train_outputs_list", "clean_lbfgs_history"])
def test_a_case_of_each_sort_is_judged_rightly(name, tmp_path):
    summary = score(tmp_path / "score.json", "-k", name, "-j", "1")["summary"]
    assert summary["errors"] == 0
    assert summary["false_alarms"] == 0
    assert summary["recall"] == 100.0


@pytest.mark.slow
def test_the_whole_corpus_is_judged_rightly(tmp_path):
    report = score(tmp_path / "score.json", "-j", "2")
    summary, rows = report["summary"], report["rows"]
    leaks = [row for row in rows if row["leak"]]
    assert [row["id"] for row in rows if row["error"]] == []
    assert [row["id"] for row in leaks if not row["found"]] == []
    assert [row["id"] for row in rows if row["alarm"]] == []
    assert summary["culprit_line"] >= 95.0, [row["id"] for row in leaks if not row["line"]]
    assert summary["fix"] >= 90.0, [row["id"] for row in leaks if not row["right_fix"]]
    assert summary["others_named"] >= 75.0
