"""A few step ends of a run of any length: their trend and their step time."""

from __future__ import annotations

import itertools

import pytest

from memprof.record.step_sample import StepSample


def sampled(allocated: list[int], duration_us: float = 10.0) -> StepSample:
    sample = StepSample()
    for step, bytes_ in enumerate(allocated):
        sample.add(step, bytes_, duration_us)
    return sample


def test_growth_after_warm_up_is_told_to_the_byte():
    sample = sampled([9000, 100, 70_000, *range(1000, 1700, 100)])
    assert sample.trend() == (100.0, 1.0)


def test_what_does_not_grow_has_no_trend():
    assert sampled([5000] * 20).trend() == (0.0, 0.0)


@pytest.mark.parametrize("steps", [0, 3, 7])
def test_fewer_than_five_steps_after_warm_up_are_too_few(steps):
    assert sampled([1000 * n for n in range(steps)]).trend() == (None, -1.0)


def test_steps_whose_bytes_are_not_known_do_not_count():
    assert sampled([*range(0, 1000, 100), *[-1] * 50]).trend() == (100.0, 1.0)


def test_the_step_time_is_the_median():
    sample = StepSample()
    assert sample.step_us == -1
    for step, duration_us in enumerate((5_000, 20, 30, 10, 20)):
        sample.add(step, 0, duration_us)
    assert sample.step_us == 20


def test_a_long_run_is_sampled_at_regular_distances_and_stays_small():
    sample = sampled([7 * n for n in range(100_000)])
    assert sample.trend() == (7.0, 1.0)
    kept = sample.steps
    assert 64 <= len(kept) < 128
    assert {b - a for a, b in itertools.pairwise(kept)} == {1024}
