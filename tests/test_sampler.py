"""Readings in columns, and looks that become rarer."""

from __future__ import annotations

from memprof.records import Readings
from memprof.sampler import ReadingBuffer, Sampler
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
