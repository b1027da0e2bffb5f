"""Our own programs on torch's allocator, kept in tests/data: the model retells them exactly.

Those named ``stub-`` were recorded in dry runs (memprof/dry_run), by three torch versions;
the allocator is torch's own there too. Those named ``gpu-`` are of an H200.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memprof.allocator import replay_recorded
from memprof.snapshot.reader import load_snapshot

FILES = sorted((Path(__file__).parents[1] / "data").glob("*.pickle.gz"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.removesuffix(".pickle.gz"))
def test_a_recorded_program_is_retold_exactly_and_its_bytes_are_torchs(path):
    counted = json.loads(path.with_name(f"{path.name}.json").read_text())["bytes"]
    (trace,) = load_snapshot(path)
    assert trace.end.allocated == counted["allocated_bytes"]
    assert trace.end.reserved == counted["reserved_bytes"]
    replay = replay_recorded(trace)
    assert replay.exact == replay.allocs
    assert replay.peak_reserved == counted["reserved_bytes.peak"]
    assert replay.new_segments_predicted == replay.new_segments
    assert replay.released_segments_predicted == replay.released_segments
