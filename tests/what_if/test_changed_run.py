"""Rows, ranking, the smallest card, and savings by replay."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from memprof.allocator import (
    CachingAllocator,
    Changes,
    Driver,
    Recorder,
    parse_settings,
    workload_of,
)
from memprof.errors import MissingError, SettingsError
from memprof.records import DeviceInfo, Header
from memprof.run import DeviceRun, Run
from memprof.snapshot.writer import write_torch_snapshot
from memprof.trace import Frame, Label, Tables
from memprof.what_if.changed_run import replay, saving
from memprof.what_if.parallel import Job, fitted, played

MIB, GIB = 1 << 20, 1 << 30


def leaky(steps=6, *, labelled=True):
    """Each step keeps 30 MiB from ``leak.py`` and frees 20 MiB from ``work.py``."""
    recording = Recorder()
    stacks, labels = [], []

    def mark(stack, step):
        missing = len(recording) - len(stacks)
        stacks.extend([stack] * missing)
        labels.extend([step + 1 if labelled else 0] * missing)

    for step in range(steps):
        recording.alloc(30 * MIB)
        mark(1, step)
        recording.free(recording.alloc(20 * MIB))
        mark(2, step)
    trace = recording.trace()
    frames = (Frame("keep", "/home/me/leak.py", 12), Frame("forward", "/home/me/work.py", 3))
    tables = Tables(
        frames=frames,
        stacks=((), (0,), (1, 0)),
        labels=(Label(), *(Label(step=step) for step in range(steps))),
    )
    events = replace(trace.events, stack=np.array(stacks), label=np.array(labels))
    return replace(trace, tables=tables, events=events)


def fragmented():
    """Sizes that grow a little each time, so that holes never fit."""
    recording, held = Recorder(), []
    for number in range(60):
        held.append(recording.alloc(12 * MIB + number * 600 * 1024))
        if len(held) > 3:
            recording.free(held.pop(0))
    return recording.trace()


def test_the_recorded_row_comes_first_and_says_what_was_recorded():
    trace = fragmented()
    (device,) = replay(trace, "expandable_segments:True")

    assert device.device == "cuda:0"
    assert [row.configuration for row in device.rows] == ["recorded", "expandable_segments:True"]
    assert device.rows[0].outcome == workload_of(trace).recorded
    assert device.rows[1].outcome.peak_reserved < device.rows[0].outcome.peak_reserved


def test_several_configurations_give_a_row_each_in_their_order():
    texts = ["max_split_size_mb:64", "roundup_power2_divisions:4", ""]
    (device,) = replay(fragmented(), texts)

    assert [row.configuration for row in device.rows[1:]] == [*texts[:2], "default settings"]


def test_a_card_that_is_too_small_says_where_memory_ran_out():
    trace = leaky()
    (device,) = replay(trace, gpu="100MiB")
    oom = device.rows[1].outcome.oom

    assert device.rows[1].configuration == "recorded settings, on 100 MiB"
    assert device.rows[1].capacity == 100 * MIB
    assert oom is not None
    assert trace.label(int(trace.events.label[oom.event])).step == 2
    assert oom.requested == 20 * MIB
    assert [(held.stack, held.bytes, held.count) for held in oom.alive] == [(1, 90 * MIB, 3)]


@pytest.mark.parametrize("site", ["keep", "leak.py", "me/leak.py:12"])
def test_freeing_a_site_each_step_takes_its_growth_away(site):
    frames_of_work = leaky()
    tables = replace(frames_of_work.tables, stacks=((), (0,), (1,)))
    (device,) = replay(replace(frames_of_work, tables=tables), free_after=site)

    assert device.rows[0].outcome.peak_allocated == (6 * 30 + 20) * MIB
    assert device.rows[1].outcome.peak_allocated == 50 * MIB
    assert device.rows[1].configuration == f"recorded settings, {site} freed each step"


def test_without_steps_a_site_keeps_only_its_latest_allocation():
    trace = leaky(labelled=False)
    tables = replace(trace.tables, stacks=((), (0,), (1,)))
    (device,) = replay(replace(trace, tables=tables), free_after="leak.py")

    assert device.rows[1].outcome.peak_allocated == 50 * MIB


def test_a_site_that_allocated_nothing_is_answered_with_those_that_did():
    with pytest.raises(MissingError, match="nothing was allocated") as caught:
        replay(leaky(), free_after="other.py")
    assert "leak.py:12 in keep" in caught.value.hint


def test_search_ranks_what_holds_least_first_after_the_recorded_row():
    (device,) = replay(fragmented(), search=True)
    reserved = [row.outcome.peak_reserved for row in device.rows[1:]]

    assert device.rows[0].configuration == "recorded"
    assert reserved == sorted(reserved)
    assert len({row.configuration for row in device.rows}) == len(device.rows) > 10


def test_the_smallest_card_leaves_room_for_cuda_itself():
    (device,) = replay(leaky(), fit=True)
    (fit,) = device.fits

    assert fit.configuration == "recorded"
    assert fit.bytes == (6 * 30 + 20) * MIB
    assert fit.card == 4 * GIB


def test_the_least_capacity_is_the_least():
    workload = workload_of(fragmented())
    job = Job(0, workload.settings)
    (least,) = fitted([workload], [job], 1)

    assert played([workload], [replace(job, capacity=least.bytes)], 1)[0].fits
    assert not played([workload], [replace(job, capacity=least.bytes - 2 * MIB)], 1)[0].fits


def test_a_trace_from_the_midst_is_laid_out_afresh_for_other_settings_beside_itself():
    recording = Recorder()
    recording.free(recording.alloc(100 * MIB))
    recording.alloc(30 * MIB)
    first = len(recording)
    recording.alloc(20 * MIB)
    (device,) = replay(recording.trace(first), "max_split_size_mb:64")

    assert [row.configuration for row in device.rows] == [
        "recorded",
        "recorded settings, laid out afresh",
        "max_split_size_mb:64",
    ]
    assert [row.outcome.peak_reserved for row in device.rows[1:]] == [50 * MIB] * 2


def test_wrong_settings_and_sizes_are_refused():
    with pytest.raises(SettingsError):
        replay(leaky(), "max_split_size_mb:1")
    with pytest.raises(SettingsError):
        replay(leaky(), gpu="a lot")
    with pytest.raises(SettingsError):
        replay(leaky(), gpu=0)


def test_a_saving_is_the_difference_of_two_replays():
    trace = leaky()
    leaks = np.flatnonzero((trace.events.action == 0) & (trace.events.stack == 1))
    saved = saving(trace, Changes(never=leaks))

    assert saved.before.peak_allocated == 200 * MIB
    assert saved.after.peak_allocated == 20 * MIB
    assert saved.peak_allocated == 180 * MIB
    assert saved.peak_reserved == 180 * MIB


def test_replays_in_several_processes_come_to_the_same():
    workload = """
import sys
from memprof.allocator import Recorder, parse_settings, workload_of
from memprof.what_if import parallel as replays
recording = Recorder()
for number in range(200):
    recording.free(recording.alloc(1000 * number + 1))
program = workload_of(recording.trace())
jobs = [replays.Job(0, parse_settings(t)) for t in ("", "expandable_segments:True", "max_split_size_mb:20")]
one = replays.played([program], jobs, 1)
replays.WORTH_A_PROCESS = 0
assert "torch" not in sys.modules
assert replays.played([program], jobs, 2) == one
"""
    subprocess.run([sys.executable, "-c", workload], check=True, timeout=600)


def test_the_command_prints_a_table_and_json(tmp_path):
    conf = parse_settings("")
    recording = Recorder(CachingAllocator(conf, driver=Driver(100 * MIB)))
    recording.alloc(60 * MIB)
    assert recording.alloc(50 * MIB) is None
    path = tmp_path / "s.pickle"
    write_torch_snapshot(path, [recording.trace()])
    command = [sys.executable, "-m", "memprof_cli", "what-if", str(path), "--gpu", "200MiB"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    figures = json.loads(
        subprocess.run([*command, "--json"], check=True, capture_output=True, text=True).stdout
    )

    assert "recorded settings, on 200 MiB" in text
    rows = figures["devices"][0]["rows"]
    assert rows[0]["oom"]["requested_bytes"] == 50 * MIB
    assert rows[0]["oom"]["event"] == 2
    assert rows[1]["oom"] is None
    assert rows[1]["peak_reserved_bytes"] == 110 * MIB


@pytest.mark.parametrize(
    ("device", "info", "capacity"),
    [
        ("cuda:0", {"total_bytes": 4 * GIB}, 4 * GIB - 512 * MIB),
        ("cuda:0", {"total_bytes": 4 * GIB, "memory_fraction": 0.5}, 2 * GIB),
        ("cuda:0", {"total_bytes": 512 * MIB}, 180 * MIB + 20 * MIB),  # it had as much as it held
        ("cuda:0", {}, 0),
        ("cpu", {"total_bytes": 4 * GIB}, 0),
    ],
)
def test_without_a_card_named_the_run_s_own_is_meant(device, info, capacity):
    trace = replace(leaky(), device=device)
    recorded = DeviceRun(device, DeviceInfo(device, **info), (trace,))
    run = Run("run.json", Header(schema=(1, 0), created_us=1), (recorded,))
    (answer,) = replay(run, "expandable_segments:True")
    assert answer.rows[-1].capacity == capacity


def test_a_card_that_is_named_counts_before_the_run_s_own():
    recorded = DeviceRun("cuda:0", DeviceInfo("cuda:0", total_bytes=712 * MIB), (leaky(),))
    run = Run("run.json", Header(schema=(1, 0), created_us=1), (recorded,))
    (answer,) = replay(run, "roundup_power2_divisions:1", gpu="100MiB")
    assert answer.rows[-1].capacity == 100 * MIB
    assert answer.rows[-1].outcome.oom is not None
