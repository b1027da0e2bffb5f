"""What of a device is not torch's: this process's beyond the allocator, and other processes'."""

from __future__ import annotations

import numpy as np

from memprof.loading import load
from memprof.records import Readings
from memprof.report.summary import summarize
from memprof.testing import TraceBuilder, step_columns, write_run
from memprof.views.device_readings import beyond_torch, most, other_processes, reserved_then
from memprof.views.examination import examine

MIB = 1 << 20


def recorded(folder, **values):
    steps = step_columns(
        allocated=[MIB] * 3, reserved=[10 * MIB, 20 * MIB, 20 * MIB], end_us=[100, 200, 300]
    )
    readings = Readings("nvml", "cuda:0", [50, 150, 250, 350], values)
    trace = TraceBuilder().alloc(MIB, "a").build()
    return load(write_run(folder / "run.json", trace, steps=steps, more=[readings]))


def test_what_is_beyond_torch_is_counted_from_the_step_before(tmp_path):
    run = recorded(tmp_path, process_used=[15 * MIB, 15 * MIB, None, 19 * MIB])
    device = run.devices[0]
    assert reserved_then(device, np.array([150, 350])).tolist() == [10 * MIB, 20 * MIB]
    series = beyond_torch(run, device)
    assert series is not None
    # Before the first step's end torch's part is not known; the cache may have shrunk since a step.
    assert np.isnan(series.values).tolist() == [True, False, True, False]
    assert series.values[[1, 3]].tolist() == [5 * MIB, 0]
    assert most(series) == 5 * MIB


def test_without_the_process_s_own_figure_nothing_is_claimed(tmp_path):
    run = recorded(tmp_path, used=[1, 2, 3, 4], process_used=[None] * 4)
    assert beyond_torch(run, run.devices[0]) is None
    assert summarize(examine(run)).devices[0].outside_torch_bytes == -1


def test_other_processes_are_named_by_what_they_had_most(tmp_path):
    run = recorded(
        tmp_path,
        others_used=[9 * MIB] * 4,
        **{
            "used by python 7": [MIB, 2 * MIB, None, None],
            "used by Xorg 9": [None, None, 7 * MIB, MIB],
        },
    )
    found = other_processes(run, "cuda:0")
    assert [(s.name, most(s)) for s in found] == [
        ("used by Xorg 9", 7 * MIB),
        ("used by python 7", 2 * MIB),
    ]
    assert summarize(examine(run)).devices[0].other_processes == {
        "Xorg 9": 7 * MIB,
        "python 7": 2 * MIB,
    }
