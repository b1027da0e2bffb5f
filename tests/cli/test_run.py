"""The options of `memprof run`, as they reach the run file; how scripts run is in test_launch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="there is nothing to record without torch")


ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    **{n: v for n, v in os.environ.items() if not n.startswith("MEMPROF")},
    "PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in (".", "cli", "dashboards")),
    "OMP_NUM_THREADS": "1",
}


def memprof(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "memprof_cli", *words],
        env=ENVIRONMENT,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "script.py").write_text("print('it runs')")
    return tmp_path


def test_every_option_reaches_the_recording(folder):
    options = {
        "--budget": ("budget", 0.05),
        "--sample-interval": ("sample_interval_s", 0.5),
        "--window-steps": ("window_steps", 7),
        "--max-events": ("max_events", 1000),
        "--max-bytes": ("max_bytes", 1 << 20),
        "--allowance": ("allowance_s", 2.5),
    }
    words = [text for name, (_, value) in options.items() for text in (name, str(value))]
    done = memprof("run", "-o", "deep/run.json", *words, "script.py", cwd=folder)
    assert done.returncode == 0, done.stderr
    header = json.loads((folder / "deep" / "run.json").read_text())[0]
    assert header["options"] == dict(options.values()) | {
        "sources": ["cpu", "cuda", "nvml", "host"]
    }


def test_the_default_file_is_named_in_the_help(folder):
    assert "memprof-run.json" in memprof("run", "--help", cwd=folder).stdout
    memprof("run", "script.py", cwd=folder)
    assert (folder / "memprof-run.json").exists()


def test_the_help_shows_each_example_on_a_line_of_its_own(folder):
    lines = memprof("run", "--help", cwd=folder).stdout.splitlines()
    assert "      memprof run train.py --epochs 3" in lines
    assert "      memprof run -o run.json -m mypackage.train" in lines


def test_a_wrong_option_is_refused_before_the_script_runs(folder):
    (folder / "script.py").write_text("print('ran')")
    done = memprof("run", "--budget", "7", "script.py", cwd=folder)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: budget is 7.0\nhint: ")


def test_a_file_that_cannot_be_written_is_refused_before_the_script_runs(folder):
    done = memprof("run", "-o", "script.py/run.json", "script.py", cwd=folder)
    assert done.returncode == 1
    assert done.stderr.startswith("error: cannot write script.py/run.json")


def test_without_a_program_it_says_how_to_use_it(folder):
    done = memprof("run", cwd=folder)
    assert done.returncode == 2
    assert "PROGRAM" in done.stderr
