"""What the footer sums up, and the summaries before it that stand in for it."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import pytest

import memprof
from memprof.record.device_figures import FiguresByDevice
from memprof.record.step_counters import Span
from memprof.record.summaries import Summaries
from memprof.records import DeviceInfo, Readings
from memprof.sources.protocol import Counters
from tests.tracked import FakeEvents, of_kind, python

torch = pytest.importorskip("torch", reason="there is nothing to record without torch")


def counted(*allocated: int, reserved: int = 4000) -> FiguresByDevice:
    figures = FiguresByDevice()
    for step, bytes_ in enumerate(allocated):
        now = Counters("cuda:0", bytes_, bytes_ + 5, reserved, reserved)
        figures.count(Span(step, step, 100 * step, 100 * step + 40), [now], 0)
    return figures


def summary(figures: FiguresByDevice, ooms: dict[str, int] | None = None):
    infos = [DeviceInfo("cuda:0", total_bytes=1 << 30)]
    return figures.summaries(lambda _: 7, ooms or {}, infos)


def test_a_device_is_summed_up_with_its_growth_its_size_and_its_failures():
    (one,) = summary(counted(*range(0, 1000, 100)), {"cuda:0": 2})
    assert (one.peak_allocated_bytes, one.peak_reserved_bytes, one.peak_step) == (905, 4000, 9)
    assert (one.bytes_per_step, one.rising, one.ooms, one.events) == (100.0, 1.0, 2, 7)
    assert one.total_bytes == 1 << 30
    assert one.outside_bytes == -1


def test_the_step_time_is_that_of_single_steps():
    figures = counted(1, 2, 3)
    figures.count(Span(3, 12, 1000, 1400), [Counters("cuda:0", 4)], -1)
    assert figures.step_us == 40


def test_what_the_driver_saw_beyond_the_reserved_bytes_is_outside_torch():
    figures = counted(1, 2, reserved=4000)
    for used in (4700, 4900, None, 4100):
        figures.read(Readings("nvml", "cuda:0", [1], {"process_used": [used]}))
    figures.read(Readings("nvml", "cuda:1", [1], {"process_used": [9999]}))
    (one,) = summary(figures)
    assert one.outside_bytes == 900


def test_a_device_that_failed_before_anything_was_counted_is_told_too():
    (one,) = summary(FiguresByDevice(), {"cpu": 1})
    assert (one.device, one.ooms, one.peak_allocated_bytes) == ("cpu", 1, -1)


def test_interim_summaries_come_ever_more_rarely(monkeypatch):
    began = 1_700_000_000_000_000
    monkeypatch.setattr("memprof.record.summaries.clock_us", lambda: began)
    output = SimpleNamespace(write=lambda _: 0)
    recording = SimpleNamespace(output=output, total_events={})
    ooms, meter = SimpleNamespace(times={}), SimpleNamespace(total_us=0.0)
    interims = Summaries(FiguresByDevice(), recording, ooms, meter)
    assert not interims.is_due(began + 9_999_999)
    assert interims.is_due(began + 10_000_000)
    week_us = 7 * 24 * 3600 * 1_000_000
    monkeypatch.setattr("memprof.record.summaries.clock_us", lambda: began + week_us)
    interims.write(1, [])
    assert not interims.is_due(began + week_us + 600_000_000)
    assert interims.is_due(began + week_us + 610_000_000)


def test_a_run_out_of_memory_leaves_a_summary_on_disk_before_the_exception_goes_on(tmp_path):
    path = tmp_path / "run.json"
    with memprof.track(path, sources=[FakeEvents()], sample_interval_s=100) as tracker:
        tracker.step()
        tracker.failed(RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to allocate 80 bytes."))  # fmt: skip
        text = path.read_text()
        (interim,) = [
            json.loads(line) for line in text.splitlines() if '"kind":"interim"' in line[:20]
        ]
    devices = {d["device"]: d for d in interim["devices"]}
    assert interim["steps"] == 1
    assert devices["cpu"]["ooms"] == 1
    assert devices["cuda:0"]["peak_allocated_bytes"] == 1500
    assert memprof.load(path).footer.steps == 1


def test_a_running_job_sums_up_now_and_then(tmp_path, monkeypatch):
    monkeypatch.setattr("memprof.record.summaries.EVERY_US", 1000)
    path = tmp_path / "run.json"
    with memprof.track(path, sources=[FakeEvents()], sample_interval_s=100) as tracker:
        for _ in range(3):
            time.sleep(0.11)
            tracker.step()
    steps = [r.get("steps", 0) for r in of_kind(path, "interim")]
    assert sorted(steps) == steps  # some by time, in the middle of a step
    assert len(steps) >= 3
    assert steps[-1] >= 2


def test_an_exception_that_ends_the_process_stands_in_the_footer(tmp_path):
    path = tmp_path / "run.json"
    code = "import sys, memprof; memprof.start(sys.argv[1]); raise ValueError('no such file')"
    done = python(code, path)
    assert done.returncode == 1
    assert of_kind(path, "footer")[0]["status"] == "ValueError: no such file"
