"""Exported snapshots read back as they were, and open in PyTorch's own functions."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from memprof.allocator import Recorder, layout
from memprof.errors import MissingError
from memprof.snapshot.reader import load_snapshot
from memprof.snapshot.writer import torch_snapshot, write_torch_snapshot
from memprof.testing import TraceBuilder

MIB = 1 << 20
SNAPSHOTS = sorted((Path(__file__).parents[3] / "shared" / "snapshots").glob("*.pickle"))

memory_viz = pytest.importorskip("torch.cuda._memory_viz", reason="torch is not installed")


def recorded():
    recorder = Recorder()
    addresses = [recorder.alloc(size) for size in (100, 3 * MIB, 25 * MIB, 512 * 1024, 7 * MIB)]
    recorder.free(addresses[1])
    recorder.request_free(addresses[2])
    recorder.alloc(2 * MIB)
    return recorder.trace()


def test_the_totals_of_segsum_are_ours():
    trace = recorded()
    text = memory_viz.segsum(torch_snapshot([trace]))

    assert f"total_reserved: {memory_viz.Bytes(trace.end.reserved)}" in text
    # torch counts what was asked for here, and what waits for a stream as free.
    assert f"total_allocated: {memory_viz.Bytes(trace.end.requested)}" in text
    assert f"segments: {len(trace.end.segments)}" in text


def test_the_memory_view_sums_to_reserved_bytes():
    trace = recorded()
    lines = memory_viz.memory(torch_snapshot([trace]), format_flamegraph=lambda text: text)
    sums = {}
    for line in lines.splitlines():
        path, _, size = line.rpartition(" ")
        state = path.split(";")[1]
        sums[state] = sums.get(state, 0) + int(size)

    assert sum(sums.values()) == trace.end.reserved
    assert sums["active_allocated"] == trace.end.allocated
    assert sums["active_pending_free"] == trace.end.active - trace.end.allocated


def test_the_trace_view_lists_every_event():
    trace = recorded()
    text = memory_viz.trace(torch_snapshot([trace]))

    assert f"{len(trace.events)} entries" in text
    assert text.count("cudaMalloc(") == 3


def test_a_cpu_trace_that_was_laid_out_opens_as_device_zero():
    builder = TraceBuilder("cpu").alloc(4096, "x").alloc(8 * MIB, "y").free("x")
    trace = layout(builder.build())
    snapshot = torch_snapshot([trace])

    assert [segment["device"] for segment in snapshot["segments"]] == [0, 0]
    assert "total_reserved: 22.0MiB" in memory_viz.segsum(snapshot)


def test_what_is_written_reads_back_column_by_column(tmp_path):
    trace = replace(recorded(), device="cuda:2")
    write_torch_snapshot(tmp_path / "s.pickle", [trace])
    (back,) = load_snapshot(tmp_path / "s.pickle")

    assert back.device == "cuda:2"
    for name in ("action", "address", "size", "stream", "time_us"):
        assert np.array_equal(getattr(back.events, name), getattr(trace.events, name)), name
    for part in ("segments", "blocks"):
        ours, theirs = getattr(trace.end, part), getattr(back.end, part)
        assert np.array_equal(ours.address, theirs.address)
        assert np.array_equal(ours.size, theirs.size)


def test_the_file_is_of_a_protocol_that_every_viewer_reads(tmp_path):
    write_torch_snapshot(tmp_path / "s.pickle", [recorded()])

    assert (tmp_path / "s.pickle").read_bytes()[:2] == b"\x80\x04"
    assert pickle.loads((tmp_path / "s.pickle").read_bytes())["device_traces"]


def test_an_out_of_memory_event_carries_free_bytes_in_place_of_an_address():
    trace = recorded()
    events = replace(
        trace.events, action=np.where(trace.events.action == 0, 8, trace.events.action)
    )
    entries = torch_snapshot([replace(trace, events=events)])["device_traces"][0]

    assert all(("device_free" in e) == (e["action"] == "oom") for e in entries)
    assert any(e["action"] == "oom" for e in entries)


def test_a_trace_without_its_end_is_refused():
    trace = recorded()
    with pytest.raises(MissingError, match="state at the end"):
        torch_snapshot([replace(trace, start=trace.end, end=None)])


@pytest.mark.skipif(not SNAPSHOTS, reason="no recorded snapshots beside the repository")
@pytest.mark.parametrize("path", SNAPSHOTS, ids=lambda path: path.stem)
def test_recorded_snapshots_survive_the_way_through_memprof(path, tmp_path):
    traces = load_snapshot(path)
    write_torch_snapshot(tmp_path / "again.pickle", traces)
    again = load_snapshot(tmp_path / "again.pickle")

    assert [t.device for t in again] == [t.device for t in traces]
    for ours, theirs in zip(traces, again, strict=True):
        assert theirs.end.reserved == ours.end.reserved
        assert theirs.end.active == ours.end.active - ours.end.unlisted
        assert np.array_equal(theirs.events.action, ours.events.action)
        assert np.array_equal(theirs.events.address, ours.events.address)
