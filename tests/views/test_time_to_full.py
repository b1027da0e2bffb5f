"""When a device is full: right within a tenth on simulated growth, and silent where nobody knows."""

from __future__ import annotations

import json

import numpy as np
import pytest

from memprof.loading import load
from memprof.records import (
    SCHEMA_VERSION,
    DeviceInfo,
    Finding,
    Footer,
    Header,
    Readings,
    StepsRecord,
)
from memprof.runfile.writer import RunWriter
from memprof.testing.runs import step_columns
from memprof.views.most_taken import most_taken
from memprof.views.time_to_full import (
    StepLevels,
    TimeToFull,
    has_gaps,
    time_to_full,
    times_to_full,
)
from memprof_cli import main

GIB, MIB = 1 << 30, 1 << 20
STEP_US = 300_000


def levels(allocated, peaks=None, *, every=1):
    """What a job would have counted at the ends of steps of 0.3 s."""
    steps = np.arange(len(allocated), dtype=float) * every
    held = np.maximum(np.asarray(allocated, dtype=float), 0).round()
    return StepLevels(
        steps=steps,
        allocated=held,
        peaks=held if peaks is None else np.asarray(peaks, dtype=float).round(),
        end_us=1e15 + steps * STEP_US,
    )


def noise(kind, size, length, seed):
    """Bytes that a step holds beside what grows: gaussian, lopsided, or seldom and large."""
    chance = np.random.default_rng(seed)
    if kind == "gaussian":
        return chance.normal(0, size, length)
    if kind == "exponential":
        return chance.exponential(size, length)
    return np.where(chance.random(length) < 0.05, chance.uniform(0, 20 * size, length), 0)


def told(kind, size, seen, seed, *, rate=4 * MIB, until=3000):
    """What is said after ``seen`` of some 2,500 steps, and the steps that there really are."""
    series = (
        10 * GIB + rate * np.arange(until + 1000) + noise(kind, size * rate, until + 1000, seed)
    )
    peaks = series + 2 * GIB
    capacity = 10 * GIB + rate * until
    full = int(np.argmax(peaks >= capacity))
    return time_to_full("cuda:0", levels(series[:seen], peaks[:seen]), capacity), full


def test_growth_without_noise_is_told_to_the_step():
    found, full = told("gaussian", 0, 300, 0)
    assert found is not None
    assert (found.full_step, full) == (2488, 2488)
    assert found.bytes_per_step == 4 * MIB
    assert found.left_us == (2488 - 299) * STEP_US
    assert found.free_bytes == 10 * GIB + 3000 * 4 * MIB - (12 * GIB + 299 * 4 * MIB)
    assert str(found) == (
        "cuda:0 runs out of memory at about step 2,500, in 11 min (4 MiB more per step)"
    )


@pytest.mark.parametrize("seen", [250, 1000, 2000, 2400])
@pytest.mark.parametrize(
    ("kind", "size"),
    [("gaussian", 1), ("gaussian", 20), ("exponential", 5), ("exponential", 20), ("spikes", 5)],
)
def test_growth_under_noise_is_told_within_a_tenth(kind, size, seen):
    """``size`` is that of the noise in steps of growth: 20 hides what twenty steps add."""
    exact = 0
    for seed in range(6):
        found, full = told(kind, size, seen, seed)
        left = full - (seen - 1)
        if left <= 0:
            continue  # it was full before
        if found is None:
            assert (kind, size, seen) == ("gaussian", 20, 250), seed  # the slope is not known yet
            continue
        if found.exact:
            exact += 1
            assert abs(found.steps_left - left) <= max(1, 0.1 * left), (seed, found, full)
        else:
            assert found.full_step >= full, (seed, found, full)
    assert exact >= (5 if size < 20 and seen <= 1000 else 0)


def test_noise_that_is_larger_than_what_is_left_gives_a_step_before_which_it_ends():
    found, full = told("exponential", 50, 1950, 3)
    assert found is not None
    assert not found.exact
    assert full <= found.full_step
    assert found.when.startswith("before step ")
    assert ", within " in found.when


def noisy(series, seed, size=MIB):
    return series + np.random.default_rng(seed).normal(0, size, len(series))


T = np.arange(2000.0)
SILENT = {
    "flat": lambda s: noisy(np.full(2000, 8.0 * GIB), s, 64 * MIB),
    "exactly flat": lambda _: np.full(2000, 8.0 * GIB),
    "saw": lambda s: noisy(4 * GIB + (T % 170) * 24 * MIB, s),
    "few teeth": lambda s: noisy(4 * GIB + (T % 900) * 4 * MIB, s),
    "warm-up": lambda s: noisy(8 * GIB * (1 - np.exp(-T / 6)), s),
    "levels off": lambda s: noisy(GIB + 2 * GIB * np.log1p(T / 40), s),
    "ever slower": lambda s: noisy(GIB + 200 * MIB * np.sqrt(T), s),
    "ever faster": lambda s: noisy(GIB + 4096 * T**2, s),
    "full cache": lambda s: noisy(GIB + np.minimum(T, 1400) * 8 * MIB, s),
    "too noisy": lambda s: noisy(8 * GIB + T * MIB, s, 1000 * MIB),
    "falls": lambda s: noisy(20 * GIB - T * 4 * MIB, s),
    "one jump": lambda s: noisy(8 * GIB + (T > 900) * 20.0 * GIB, s),
    "random walk": lambda s: (
        20 * GIB + np.cumsum(np.random.default_rng(s).normal(0, 8 * MIB, 2000))
    ),
}


@pytest.mark.parametrize("name", SILENT)
def test_what_does_not_fill_the_device_is_not_told(name):
    said = [
        seed
        for seed in range(8)
        if time_to_full("cuda:0", levels(SILENT[name](seed)), 80 * GIB) is not None
    ]
    assert said == []


def test_a_few_steps_are_too_few():
    growing = 8 * GIB + np.arange(300) * 8 * MIB
    assert time_to_full("cuda:0", levels(growing[:25]), 20 * GIB) is None
    assert time_to_full("cuda:0", levels(growing[:40]), 20 * GIB) is not None


def test_a_device_of_unknown_size_is_never_full():
    assert time_to_full("cuda:0", levels(8 * GIB + np.arange(300) * 8 * MIB), 0) is None


def test_what_would_take_a_hundred_times_as_long_is_not_told():
    growing = levels(8 * GIB + np.arange(300.0) * MIB)
    assert time_to_full("cuda:0", growing, 8 * GIB + 20_000 * MIB) is not None
    assert time_to_full("cuda:0", growing, 8 * GIB + 40_000 * MIB) is None


@pytest.mark.parametrize("begins", [600, 900, 1100, 1500])
def test_growth_that_began_late_is_told_from_where_it_began(begins):
    series = 8 * GIB + np.maximum(0, np.arange(8000.0) - begins) * 16 * MIB
    full = int(np.argmax(series >= 40 * GIB))
    found = time_to_full("cuda:0", levels(noisy(series, 1)[:2000]), 40 * GIB)
    assert found is not None
    assert abs(found.full_step - full) <= 0.1 * (full - 1999)


def test_growth_in_stairs_is_told():
    series = 8 * GIB + (np.arange(8000) // 50) * 800.0 * MIB
    full = int(np.argmax(series >= 70 * GIB))
    found = time_to_full("cuda:0", levels(series[:2000]), 70 * GIB)
    assert found is not None
    assert abs(found.full_step - full) <= 0.1 * (full - 1999)


def test_a_saw_whose_teeth_begin_ever_higher_is_told_or_not_but_never_wrong():
    steps = np.arange(20_000.0)
    for period in (7, 20, 110):
        series = 8 * GIB + (steps % period) / period * GIB + steps * 4 * MIB
        full = int(np.argmax(series >= 40 * GIB))
        found = time_to_full("cuda:0", levels(series[:2000]), 40 * GIB)
        assert found is None or abs(found.full_step - full) <= 0.1 * (full - 1999)


def test_peaks_that_grow_fill_a_device_too():
    ends = np.full(600, 4.0 * GIB)
    peaks = 8 * GIB + np.arange(600.0) * 8 * MIB
    found = time_to_full("cuda:0", levels(ends, peaks), 20 * GIB)
    assert found is not None
    assert found.full_step == 1536


def test_rows_of_several_steps_count_as_many():
    series = 8 * GIB + np.arange(500.0) * 8 * 16 * MIB
    found = time_to_full("cuda:0", levels(series, every=16), 80 * GIB)
    assert found is not None
    assert found.full_step == 16 * 576
    assert found.bytes_per_step == 8 * MIB
    assert found.left_us == (16 * 576 - 16 * 499) * STEP_US


def test_the_time_counts_the_pauses_between_steps():
    slow = levels(8 * GIB + np.arange(300.0) * 8 * MIB)
    slow.end_us[:] = 1e15 + slow.steps * STEP_US + slow.steps // 10 * 60e6
    found = time_to_full("cuda:0", slow, 80 * GIB)
    assert found is not None
    each = STEP_US + 60e6 / 10
    assert found.left_us == pytest.approx(found.steps_left * each, rel=0.1)


def test_without_times_it_says_the_step_alone():
    growing = levels(8 * GIB + np.arange(300.0) * 8 * MIB)
    found = time_to_full(
        "cuda:0",
        StepLevels(growing.steps, growing.allocated, growing.peaks, np.zeros(300)),
        80 * GIB,
    )
    assert found is not None
    assert (found.left_us, found.when) == (-1, "at about step 9,200")
    assert (
        TimeToFull("cpu", 1.0, 1, 10, 50, 5_000_000, ended=True).when
        == "at about step 50, 5.0 s later"
    )


def recorded(path, *more, footer=True, device="cuda:0", total=20 * GIB):
    """A run file with the counters of 400 steps that leave 8 MiB each."""
    begin = 1_700_000_000_000_000
    info = DeviceInfo(device, total_bytes=total)
    writer = RunWriter(path, Header(schema=SCHEMA_VERSION, created_us=begin, devices=[info]))
    held = [8 * GIB + 8 * MIB * n for n in range(400)]
    ends = [begin + STEP_US * (n + 1) for n in range(400)]
    columns = step_columns(
        allocated=held,
        peak_allocated=[one + GIB for one in held],
        reserved=[one + 2 * GIB for one in held],
        end_us=ends,
    )
    writer.write(StepsRecord(device, columns))
    for record in more:
        writer.write(record)
    writer.close(Footer(ends[-1], 400) if footer else None)
    return load(path)


LATER = 1_700_000_000_000_000 + 401 * STEP_US
HELD = 8 * GIB + 399 * 8 * MIB


def test_a_recording_tells_it_and_what_others_have_is_not_free(tmp_path):
    (alone,) = times_to_full(recorded(tmp_path / "run.json", footer=False))
    assert (alone.full_step, alone.ended) == (1408, False)
    used = Readings("nvml", "cuda:0", [LATER], {"used": [HELD + 2 * GIB + 3 * GIB]})
    (shared,) = times_to_full(recorded(tmp_path / "run.json", used))
    assert alone.full_step - shared.full_step == 3 * 1024 // 8
    assert shared.ended
    assert str(shared).startswith("cuda:0 would have run out of memory at about step ")
    assert " later (8 MiB more per step)" in str(shared)


def test_what_ran_out_already_is_not_told(tmp_path):
    out = Finding("oom", device="cuda:0", step=399)
    assert list(times_to_full(recorded(tmp_path / "run.json", out))) == []


def test_on_a_cpu_the_host_must_have_said_what_is_free(tmp_path):
    assert list(times_to_full(recorded(tmp_path / "run.json", device="cpu", total=0))) == []
    free = {"available": [8 * GIB], "limit_free": [2 * GIB]}
    host = Readings("host", "host", [LATER], free)
    (found,) = times_to_full(recorded(tmp_path / "run.json", host, device="cpu", total=0))
    assert found.full_step == 399 + 1024 // 8
    unlimited = Readings("host", "host", [LATER], free | {"limit_free": [None]})
    (found,) = times_to_full(recorded(tmp_path / "run.json", unlimited, device="cpu", total=0))
    assert found.full_step == 399 + 7 * 1024 // 8


def test_the_report_and_the_list_of_leaks_say_it(tmp_path, capsys):
    recorded(tmp_path / "run.json", footer=False)
    said = "cuda:0 runs out of memory at about step 1,400, in 5 min (8 MiB more per step)"
    for command in ("report", "leaks"):
        with pytest.raises(SystemExit):
            main([command, str(tmp_path / "run.json")])
        assert said in " ".join(capsys.readouterr().out.split())
    assert said in (tmp_path / "run.html").read_text()
    for command in ("report", "leaks"):
        with pytest.raises(SystemExit):
            main([command, "--json", str(tmp_path / "run.json")])
        told = json.loads(capsys.readouterr().out)
        (one,) = (
            told["time_to_full"] if command == "leaks" else [told["devices"][0]["time_to_full"]]
        )
        assert (one["full_step"], one["exact"]) == (1408, True)


@pytest.mark.parametrize(
    ("allocated", "peak", "inactive_split", "taken"),
    [
        (100, 150, -1, 150),
        (100, 150, 0, 150),
        (100, 150, 40, 150),  # what the step made for itself may have been in the gaps
        (100, 150, 80, 180),
        (100, -1, 80, 180),
    ],
)
def test_gaps_count_as_far_as_no_step_fits_into_them(allocated, peak, inactive_split, taken):
    assert most_taken(allocated, peak, inactive_split) == taken


@pytest.mark.parametrize(
    ("settings", "gaps"),
    [
        ({}, True),
        ({"expandable_segments": True}, False),
        (
            {"expandable_segments": False, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
            True,
        ),
        ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64, expandable_segments: True"}, False),
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:False"}, True),
    ],
)
def test_segments_that_expand_have_no_gaps_that_stay(settings, gaps):
    assert has_gaps(DeviceInfo("cuda:0", settings=settings)) is gaps


def test_gaps_that_grow_fill_a_device_too(tmp_path):
    begin = 1_700_000_000_000_000
    info = DeviceInfo("cuda:0", total_bytes=20 * GIB)
    writer = RunWriter(
        tmp_path / "run.json", Header(schema=SCHEMA_VERSION, created_us=begin, devices=[info])
    )
    columns = step_columns(
        allocated=[8 * GIB] * 400,
        peak_allocated=[9 * GIB] * 400,
        inactive_split=[GIB + 4 * MIB * n for n in range(400)],
        end_us=[begin + STEP_US * (n + 1) for n in range(400)],
    )
    writer.write(StepsRecord("cuda:0", columns))
    writer.close()
    (found,) = times_to_full(load(tmp_path / "run.json"))
    assert (found.full_step, found.bytes_per_step) == (11 * 256, 4 * MIB)
