"""Small programs, recorded here and now on a GPU: the model retells them, and torch's counters."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch and a CUDA device")

from memprof.allocator import replay_recorded  # noqa: E402
from memprof.snapshot.reader import load_snapshot  # noqa: E402

SCRIPT = Path(__file__).with_name("record_small.py")
NAMES = (
    "training",
    "sizes",
    "sizes-expandable",
    "sizes-split-limit",
    "sizes-powers",
    "collecting",
    "collecting-split-limit",
    "streams",
    "graphs",
    "running-out",
    *(f"anything-{seed}" for seed in range(6)),
)


@pytest.mark.parametrize("name", NAMES)
def test_a_program_is_retold_exactly_and_its_bytes_are_torchs(name, tmp_path):
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path, name], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (path,) = tmp_path.glob("*.pickle.gz")
    counted = json.loads((tmp_path / f"{path.name}.json").read_text())["bytes"]
    (trace,) = load_snapshot(path)
    assert trace.end.allocated == counted["allocated_bytes"]
    assert trace.end.reserved == counted["reserved_bytes"]
    assert trace.end.active == counted["active_bytes"]
    replay = replay_recorded(trace)
    assert replay.exact == replay.allocs
    assert replay.peak_reserved == counted["reserved_bytes.peak"]
    assert replay.released_segments_predicted == replay.released_segments
