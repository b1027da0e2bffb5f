"""Readings in columns, and looks that become rarer."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

import memprof
from memprof.loading import load
from memprof.record.sampler import ReadingBuffer, Sampler, Thinning
from memprof.records import Readings
from memprof.sources.protocol import Reading


def test_values_that_come_and_go_are_filled_with_none():
    buffer = ReadingBuffer("nvml", "cuda:0")
    buffer.add(Reading("cuda:0", 1, {"used": 5}))
    buffer.add(Reading("cuda:0", 2, {"used": 6, "power_w": 1.5}))
    buffer.add(Reading("cuda:0", 3, {"power_w": None}))
    assert buffer.take() == Readings(
        "nvml", "cuda:0", [1, 2, 3], {"used": [5, 6, None], "power_w": [None, 1.5, None]}
    )


def test_looks_become_rarer_in_a_long_job():
    sampler = Sampler([], 1.0, lambda r: None, lambda s, e: None, lambda: None)
    intervals = []
    for _ in range(3):
        intervals.append(sampler.interval_s)
        for _ in range(Sampler.DENSE):
            sampler.look()
    assert intervals == [1.0, 2.0, 4.0]


def test_of_a_job_of_months_the_file_has_ever_fewer_readings_and_the_last_ones():
    thinning, dense = Thinning(), Thinning.DENSE
    taken = []
    for look in range(dense * 8 + 5):
        for device in ("host", "cuda:0"):
            record = Readings("any", device, [look], {})
            if thinning.takes(record):
                taken.append(record)
    looks = [record.time_us[0] for record in taken if record.device == "host"]
    assert looks[: dense // 2] == list(range(dense // 2))
    assert [b - a for a, b in pairwise(looks)][dense // 2 :: dense // 2] == [2, 4, 8, 16]
    assert len(taken) <= 5 * dense  # of two devices together
    last = [(record.device, record.time_us[0]) for record in thinning.take_last()]
    assert last == [("host", dense * 8 + 4), ("cuda:0", dense * 8 + 4)]
    assert thinning.take_last() == []


class Busy:
    """A source whose readings keep the processor busy, and count how long they did."""

    name = "busy"

    def __init__(self) -> None:
        self.burned_us = 0.0
        self.in_thread = threading.Semaphore(0)

    def open(self) -> None: ...

    def close(self) -> None: ...

    def read(self) -> Sequence[Reading]:
        began_s = time.thread_time()
        while time.thread_time() - began_s < 0.03:
            pass
        self.burned_us += (time.thread_time() - began_s) * 1e6
        if threading.current_thread().name == "memprof sampler":
            self.in_thread.release()
        return ()


def test_what_readings_take_is_part_of_what_recording_took(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="there is nothing to record without torch")
    path, source = tmp_path / "run.json", Busy()
    with memprof.track(path, sources=[source], sample_interval_s=0.01) as tracker:
        tracker.step()
        before_us = tracker.overhead_us
        for _ in range(11):
            source.in_thread.acquire()
        tracker.step()
        beside_us = tracker.overhead_us - before_us
    footer = load(path).footer
    assert beside_us >= 10 * 30_000  # the last of the readings may not have been counted yet
    assert footer is not None
    assert footer.overhead_us >= before_us + beside_us + 30_000  # one more at the end


def test_time_of_the_thread_is_told_once() -> None:
    looked, source = threading.Event(), Busy()
    sampler = Sampler([source], 0.01, lambda r: None, lambda s, e: None, looked.set)
    sampler.start()
    assert looked.wait(30)
    assert sampler.stop()
    spent_us = sampler.take_spent_us()
    assert spent_us >= 30_000
    assert sampler.take_spent_us() == 0
