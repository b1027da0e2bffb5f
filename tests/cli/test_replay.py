"""``memprof replay`` prints what was exact and writes every placement."""

from __future__ import annotations

import csv
import gzip
import json
import pickle

import pytest
from click.testing import CliRunner

from memprof.allocator import Recorder
from memprof.snapshot.writer import torch_snapshot, write_torch_snapshot
from memprof_cli.replay import command

MIB = 1 << 20


def recorded():
    recording, live = Recorder(), []
    for number in range(40):
        live.append(recording.alloc(number * 150_000 + 1))
        if number % 3 == 2:
            recording.free(live.pop(number % len(live)))
    return recording.trace()


def run(*args):
    return CliRunner().invoke(command, [str(arg) for arg in args], catch_exceptions=False)


def rows_of(path):
    with path.open(newline="") as file:
        return [tuple(map(int, row)) for row in list(csv.reader(file))[1:]]


def test_the_figures_are_printed_for_people_and_for_machines(tmp_path):
    path = tmp_path / "s.pickle"
    write_torch_snapshot(path, [recorded()])
    text = run(path).output
    (device,) = json.loads(run(path, "--json").output)["devices"]

    assert "allocations placed exactly   40 of 40" in text
    assert (device["device"], device["allocs"], device["exact"]) == (0, 40, 40)
    assert device["segment_allocs"] == device["segment_allocs_predicted"] > 1
    assert device["recorded_peak_reserved_bytes"] == device["replayed_peak_reserved_bytes"]


def test_placements_name_every_alloc_event_by_its_index(tmp_path):
    trace = recorded()
    path, out = tmp_path / "s.pickle", tmp_path / "out.csv"
    write_torch_snapshot(path, [trace])
    run(path, "--placements", out)
    allocs = [i for i, action in enumerate(trace.events.action.tolist()) if action == 0]

    assert out.read_text().splitlines()[0] == "device,event,predicted_address"
    assert rows_of(out) == [(0, i, int(trace.events.address[i])) for i in allocs]


@pytest.mark.parametrize("opener", [open, gzip.open])
def test_placements_of_a_rotated_ring_keep_the_indices_of_the_file(tmp_path, opener):
    data = torch_snapshot([recorded()])
    entries = data["device_traces"][0]
    data["device_traces"][0] = entries[25:] + entries[:25]
    path, out = tmp_path / "s.pickle", tmp_path / "out.csv"
    with opener(path, "wb") as file:
        pickle.dump(data, file)
    text = run(path, "--placements", out).output

    assert "were sorted" in text
    rotated = data["device_traces"][0]
    expected = [(0, i, e["addr"]) for i, e in enumerate(rotated) if e["action"] == "alloc"]
    assert rows_of(out) == expected


def test_an_empty_snapshot_is_no_error(tmp_path):
    path, out = tmp_path / "s.pickle", tmp_path / "out.csv"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": []}))

    assert "nothing to replay" in run(path, "--placements", out).output
    assert json.loads(run(path, "--json").output)["devices"] == []
    assert rows_of(out) == []


def test_a_state_without_a_trace_has_nothing_to_replay(tmp_path):
    data = {**torch_snapshot([recorded()]), "device_traces": []}
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(data))

    assert "nothing to replay" in run(path).output
