"""Steps, what each held, and how fast the floor rises."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from memprof.records import DeviceInfo
from memprof.run import DeviceRun, Steps
from memprof.testing import TraceBuilder
from memprof.trace import NOT_RECORDED, Annotation, Trace
from memprof.views.steps import allocated_trend, device_steps, ooms, step_of_event
from memprof.views.timeline import timeline
from memprof.views.trend import Trend

KIB, MIB = 1 << 10, 1 << 20


def two_steps() -> Trace:
    builder = TraceBuilder().existing(MIB, "w")
    for step in (5, 6):
        builder.label(step=step).alloc(KIB, f"kept{step}").alloc(64 * KIB, "x").free("x")
    return builder.build()


def device(trace: Trace, steps: Steps | None = None) -> DeviceRun:
    return DeviceRun("cuda:0", DeviceInfo("cuda:0"), (trace,), steps or Steps.build())


def test_every_event_has_the_step_of_the_last_label_that_named_one() -> None:
    trace = TraceBuilder().alloc(1, "a").label(step=0).alloc(1, "b").label().alloc(1, "c").build()

    assert step_of_event(trace).tolist() == [-1, -1, 0, 0]
    assert step_of_event(TraceBuilder().build()).tolist() == []


def test_a_window_tells_what_its_steps_held_and_their_own_peaks() -> None:
    trace = two_steps()
    counted = Steps.build(first=[4, 5, 6], last=[4, 5, 6], allocated=[7, -1, -1], window=[-1, 0, 0])

    steps = device_steps(device(trace, counted), (timeline(trace),))
    assert steps.allocated.tolist() == [7, MIB + KIB, MIB + 2 * KIB]
    assert steps.peak_allocated.tolist() == [-1, MIB + 65 * KIB, MIB + 66 * KIB]
    assert steps.reserved.tolist() == [-1, 2 * MIB, 2 * MIB]


def test_a_step_whose_last_events_are_missing_keeps_what_was_counted() -> None:
    trace = two_steps()
    held = [MIB + KIB, 5 * MIB]  # in the second step the recorder was stopped
    counted = Steps.build(first=[5, 6], last=[5, 6], allocated=held, window=[0, 0])

    steps = device_steps(device(trace, counted), (timeline(trace),))
    assert steps.allocated.tolist() == held
    assert steps.peak_allocated.tolist() == [MIB + 65 * KIB, -1]


@pytest.mark.parametrize("profiler", [True, False])
def test_a_snapshot_has_steps_where_it_carries_annotations(profiler: bool) -> None:
    trace = two_steps()
    times = trace.events.time_us
    first_end, second_end = int(times[3]), int(times[-1])
    marks = (
        (Annotation("ProfilerStep#5", int(times[0]), first_end), Annotation("ProfilerStep#6", int(times[4]), second_end))
        if profiler
        else (Annotation("Optimizer.step#SGD.step", int(times[2]), first_end), Annotation("Optimizer.step#SGD.step", int(times[6]), second_end))
    )  # fmt: skip
    trace = replace(trace, annotations=marks)

    steps = device_steps(device(trace), (timeline(trace),))
    assert steps.first.tolist() == ([5, 6] if profiler else [0, 1])
    assert steps.allocated.tolist() == [MIB + KIB, MIB + 2 * KIB]
    assert steps.peak_allocated.tolist() == [MIB + 65 * KIB, MIB + 66 * KIB]
    assert steps.end_us.tolist() == [first_end, second_end]


def test_without_counters_and_annotations_there_are_no_steps() -> None:
    trace = two_steps()
    assert len(device_steps(device(trace), (timeline(trace),))) == 0


def counters(allocated: list[int]) -> Steps:
    return Steps.build(first=range(len(allocated)), last=range(len(allocated)), allocated=allocated)


def test_growth_is_the_median_slope_after_warm_up() -> None:
    values = [9 * MIB, 5, 7, *(MIB + 100 * i for i in range(20))]
    values[10] = 1 << 40  # one outlier bends nothing

    found = allocated_trend(counters(values))
    assert found is not None
    assert found.bytes_per_step == 100
    assert (found.first_step, found.last_step) == (3, 22)
    assert found.rising > 0.9


def test_steps_that_were_recorded_one_by_one_count_for_no_more_than_others() -> None:
    """It rose for fifty steps, and then was level for a thousand, of which each row has ten."""
    ones, tens = np.arange(50), np.arange(50, 1050, 10)
    steps = Steps.build(
        first=np.concatenate([ones, tens]),
        last=np.concatenate([ones, tens + 9]),
        allocated=np.concatenate([MIB + 100 * ones, np.full(len(tens), MIB + 5_000)]),
    )
    found = allocated_trend(steps)
    assert found is not None
    assert found.bytes_per_step == 0
    assert (found.first_step, found.last_step) == (9, 1049)


def test_a_level_floor_does_not_grow() -> None:
    found = allocated_trend(counters([MIB] * 30))
    assert found is not None
    assert (found.bytes_per_step, found.rising) == (0, 0)


def test_too_few_steps_have_no_growth() -> None:
    assert allocated_trend(counters([1] * 7)) is None
    assert allocated_trend(counters([NOT_RECORDED] * 50)) is None
    assert allocated_trend(Steps.build()) is None


def test_steps_that_a_damaged_file_repeats_count_once() -> None:
    repeated = counters([100 * i for i in range(20)])
    found = allocated_trend(Steps.concatenate([repeated, repeated]))
    assert found is not None
    assert found.bytes_per_step == 100


def test_long_runs_are_thinned_and_keep_their_slope() -> None:
    found = allocated_trend(counters([10 * i for i in range(100_000)]))
    assert found is not None
    assert found.bytes_per_step == pytest.approx(10)


def test_ooms_are_events() -> None:
    trace = TraceBuilder().alloc(1, "a").oom(1 << 40).build()
    assert np.array_equal(ooms(trace), [2])


@pytest.mark.parametrize(
    ("rate", "said"),
    [(393_216.2, "384 KiB per step over steps 3 to 39"), (0.3, "none over steps 3 to 39")],
)
def test_growth_is_told_in_words(rate: float, said: str) -> None:
    assert str(Trend(rate, 3, 39, 1.0)) == said
