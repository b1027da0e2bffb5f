"""A job is told that its device fills up, early enough and not too often."""

from __future__ import annotations

import logging

import pytest

import memprof
from memprof.record import summaries
from memprof.record.device_figures import FiguresByDevice
from memprof.record.full_warnings import FullWarnings
from memprof.record.step_counters import Span
from memprof.records import DeviceInfo, Readings
from memprof.sources.protocol import Counters
from memprof.views.time_to_full import TimeToFull
from tests.tracked import FakeEvents, of_kind

torch = pytest.importorskip("torch", reason="there is nothing to record without torch")

MIB = 1 << 20


def full(steps_left, *, last=100, device="cuda:0", step_us=1_000_000):
    return TimeToFull(device, 1e6, 10**9, last, last + steps_left, steps_left * step_us)


def test_it_is_told_once_and_again_when_a_quarter_is_left():
    warnings = FullWarnings()
    told = [left for left in range(1000, 0, -1) if list(warnings.due([full(left)]))]
    assert told == [1000, 250, 62, 15, 3]


def test_devices_are_told_by_themselves():
    warnings = FullWarnings()
    both = [full(1000), full(500, device="cuda:1")]
    assert [finding.device for finding, _ in warnings.due(both)] == ["cuda:0", "cuda:1"]
    assert list(warnings.due(both)) == []


def test_what_is_weeks_away_is_not_told():
    assert list(FullWarnings().due([full(8 * 24 * 3600)])) == []
    assert list(FullWarnings().due([full(6 * 24 * 3600)])) != []


def figures(count, *, step=8 * MIB, others=0, device="cuda:0"):
    made = FiguresByDevice()
    for n in range(count):
        held = 1000 * MIB + n * step
        now = Counters(device, held, held + 100 * MIB, held + 200 * MIB, held + 200 * MIB)
        made.count(Span(n, n, 1000 * n, 1000 * n + 1000), [now], -1)
    if others:
        used = 1000 * MIB + (count - 1) * step + 200 * MIB + others
        made.read(Readings("nvml", device, [1], {"used": [used], "process_used": [None]}))
    return made


def test_in_the_job_it_is_the_cards_memory_less_what_others_have():
    infos = [DeviceInfo("cuda:0", total_bytes=4000 * MIB)]
    alone = figures(100).times_to_full(infos)["cuda:0"]
    shared = figures(100, others=800 * MIB).times_to_full(infos)["cuda:0"]
    # 1000 + 8 n + 100 comes to 4000 MiB, or to 3200.
    assert (alone.full_step, shared.full_step) == (363, 263)
    assert alone.left_us == (363 - 99) * 1000
    (one,) = figures(100).summaries(lambda _: 0, {}, infos)
    assert (one.full_step, one.full_left_us) == (363, alone.left_us)
    (one,) = figures(100).summaries(lambda _: 0, {"cuda:0": 1}, infos)
    assert (one.full_step, one.full_left_us) == (-1, -1)


def test_the_share_that_a_process_may_have_is_all_there_is():
    infos = [DeviceInfo("cuda:0", total_bytes=4000 * MIB, memory_fraction=0.5)]
    assert figures(100).times_to_full(infos)["cuda:0"].full_step == 113


def test_a_cpu_is_full_where_the_host_or_its_container_is():
    infos = [DeviceInfo("cpu")]
    made = figures(100, device="cpu")
    assert made.times_to_full(infos) == {}
    made.read(Readings("host", "host", [1], {"available": [8000 * MIB], "limit_free": [None]}))
    assert made.times_to_full(infos)["cpu"].full_step == 99 + (8000 - 100) // 8 + 1
    made.read(Readings("host", "host", [1], {"available": [8000 * MIB], "limit_free": [900 * MIB]}))
    assert made.times_to_full(infos)["cpu"].full_step == 99 + 100


def test_peaks_of_steps_that_are_not_kept_count():
    made = FiguresByDevice()
    for n in range(1000):
        held = 1000 * MIB + n * MIB
        peak = held + (300 * MIB if n % 16 == 9 else 0)
        made.count(Span(n, n, 10 * n, 10 * n + 10), [Counters("cuda:0", held, peak)], -1)
    found = made.times_to_full([DeviceInfo("cuda:0", total_bytes=4000 * MIB)])["cuda:0"]
    assert abs(found.full_step - 2700) <= 0.1 * 1700


class Growing(FakeEvents):
    def counters(self):
        self.allocated += 4 * MIB
        return super().counters()


def test_a_job_whose_device_fills_up_is_told_while_there_is_time(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(summaries, "EVERY_US", 0)
    monkeypatch.setattr("memprof.record.session.FLUSH_IN_WINDOW_US", 0)
    told, source = [], Growing()
    with (
        caplog.at_level(logging.WARNING),
        memprof.track(tmp_path / "run.json", sources=[source], on_finding=told.append) as tracker,
    ):
        for _ in range(120):
            tracker.step()
    first = told[0]
    assert first.finding == "time_to_full"
    assert first.device == "cuda:0"
    assert first.details["full_step"] == pytest.approx(255, abs=3)
    assert first.step < 60
    assert first.bytes == pytest.approx((1 << 30) - source.allocated, abs=500 * MIB)
    assert len(told) <= 2
    assert "runs out of memory at about step 2" in caplog.text
    assert "save a checkpoint" in caplog.text
    written = of_kind(tmp_path / "run.json", "finding")
    assert [one["finding"] for one in written] == ["time_to_full"] * len(told)
    last = of_kind(tmp_path / "run.json", "footer")[-1]["devices"][0]
    assert last["full_step"] == pytest.approx(255, abs=3)


def test_a_warning_that_fails_does_not_end_the_recording(tmp_path, monkeypatch):
    monkeypatch.setattr(summaries, "EVERY_US", 0)
    monkeypatch.setattr("memprof.record.session.FLUSH_IN_WINDOW_US", 0)

    def fail(_):
        raise RuntimeError("no disk for a checkpoint")

    with memprof.track(tmp_path / "run.json", sources=[Growing()], on_finding=fail) as tracker:
        for _ in range(60):
            tracker.step()
    assert of_kind(tmp_path / "run.json", "footer")[-1].get("status", "ok") == "ok"
