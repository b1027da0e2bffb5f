"""Every allocation that a real GPU recorded is placed where the real allocator put it."""

from __future__ import annotations

from pathlib import Path

import pytest

from memprof.allocator import play, replay_recorded, replayed_trace, workload_of
from memprof.snapshot.reader import load_snapshot

SNAPSHOTS = Path(__file__).parents[3] / "shared" / "snapshots"
NOT_FROM_AN_ALLOCATOR = "synthetic-random-frames"
FILES = sorted(SNAPSHOTS.glob("*.pickle"))

pytestmark = pytest.mark.skipif(not FILES, reason="no recorded snapshots beside the repository")


def recorded(path: Path):
    return [trace for trace in load_snapshot(path) if len(trace.events)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_event_of_a_recorded_snapshot_is_predicted(path):
    if path.stem == NOT_FROM_AN_ALLOCATOR:
        pytest.skip("made up by a generator: its addresses lie in no segment")
    for replay in map(replay_recorded, recorded(path)):
        assert replay.exact == replay.allocs
        assert replay.doubts == {}
        assert replay.new_segments_predicted == replay.new_segments
        assert replay.released_segments_predicted == replay.released_segments
        assert replay.peak_reserved == replay.recorded_peak_reserved


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_bytes_are_conserved_from_the_rebuilt_start_to_the_recorded_end(path):
    for trace in recorded(path):
        if path.stem == NOT_FROM_AN_ALLOCATOR:
            continue
        exact = replayed_trace(trace).trace
        assert exact.start is not None
        assert exact.end is not None
        # A block is allocated until its free is requested; what the start held counts too.
        start = dict(
            zip(exact.start.blocks.address.tolist(), exact.start.blocks.size.tolist(), strict=True)
        )
        live = {
            a: s
            for a, s, state in zip(start, start.values(), exact.start.blocks.state, strict=True)
            if state == 1
        }
        rows = (exact.events.action, exact.events.address, exact.events.block_size)
        for action, address, taken in zip(*(column.tolist() for column in rows), strict=True):
            if action == 0:
                live[address] = taken
            elif action == 1:
                live.pop(address, None)
        assert sum(live.values()) == exact.end.allocated - exact.end.unlisted


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_left_to_itself_the_model_comes_to_the_recorded_peaks_calls_and_retries(path):
    for trace in recorded(path):
        workload = workload_of(trace)
        if path.stem != NOT_FROM_AN_ALLOCATOR:
            assert play(workload) == workload.recorded


def test_a_file_that_no_allocator_wrote_counts_as_undetermined_not_as_exact():
    path = SNAPSHOTS / f"{NOT_FROM_AN_ALLOCATOR}.pickle"
    if not path.exists():
        pytest.skip("the made-up snapshot is not there")
    for replay in map(replay_recorded, recorded(path)):
        assert replay.exact == 0
        assert replay.undetermined == replay.allocs
        assert "contradict" in " ".join(replay.notes)
