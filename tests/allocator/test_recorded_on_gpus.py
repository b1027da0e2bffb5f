"""Snapshots of our own programs that were recorded on a GPU and are kept in tests/data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memprof.allocator import replay_recorded
from memprof.snapshot import load_snapshot

FILES = sorted((Path(__file__).parents[1] / "data").glob("gpu-*.pickle.gz"))

pytestmark = pytest.mark.skipif(
    not FILES, reason="tests/gpu/record_small.py was not yet run on a machine with a GPU"
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.split(".")[0])
def test_a_recorded_program_is_retold_exactly_and_its_bytes_are_torchs(path):
    counted = json.loads(path.with_name(f"{path.name}.json").read_text())["bytes"]
    (trace,) = load_snapshot(path)
    assert trace.end.allocated == counted["allocated_bytes"]
    assert trace.end.reserved == counted["reserved_bytes"]
    replay = replay_recorded(trace)
    assert replay.exact == replay.allocs
    assert replay.peak_reserved == counted["reserved_bytes.peak"]
