"""What counts as growth without end in a series of one figure a step, and what does not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memprof.views.trend import floor, level_rise, rise, rising_share, theil_sen, trend


def series(*values):
    return np.array(values, dtype=np.int64)


def test_one_more_every_step_rises_by_one():
    found = rise(np.arange(40))
    assert found is not None
    assert (found.per_place, found.slope, found.every) == (1.0, 1.0, 1)


def test_bytes_are_measured_where_the_count_rises():
    found = rise(np.arange(40), np.arange(40) * 96)
    assert found is not None
    assert found.per_place == 96.0


def test_one_more_every_fifth_step_rises_by_a_fifth():
    found = rise(np.arange(60) // 5)
    assert found is not None
    assert found.per_place == pytest.approx(0.2)
    assert found.every == 5


def test_a_cache_that_is_full_has_stopped():
    assert rise(np.minimum(np.arange(40), 16)) is None


def test_a_staircase_of_four_has_stopped():
    assert rise(np.minimum(np.arange(40) // 3, 4)) is None


def test_a_cache_that_few_keys_are_missing_in_levels_off():
    """Each step asks for keys by chance: the last ones come rarely."""
    asked = 1 - (15 / 16) ** np.arange(64)
    assert rise(np.round(400 * asked).astype(np.int64)) is None
    assert rise(np.round(400 * asked).astype(np.int64)[:24]) is not None


def test_a_saw_tooth_does_not_rise():
    assert rise(np.arange(60) % 9) is None


def test_a_saw_tooth_whose_troughs_rise_does():
    teeth = np.arange(90)
    found = rise(teeth % 9 + teeth // 9)
    assert found is not None
    assert found.per_place == pytest.approx(1 / 9)


def test_a_saw_tooth_cut_in_its_last_tooth_does_not_rise():
    assert rise(np.arange(35) % 20) is None


def test_growth_that_comes_ever_more_rarely_settles():
    found_after = [1, 2, 3, 4, 6, 8, 11, 15, 21, 30, 42, 58]
    values = np.searchsorted(found_after, np.arange(64), side="right")
    assert rise(values) is None


def test_growth_that_begins_late_counts_when_nothing_ever_fell():
    assert rise(np.maximum(0, np.arange(40) - 18)) is not None


@given(st.lists(st.integers(0, 50), min_size=30, max_size=200))
def test_noise_with_returns_to_zero_never_rises(values):
    values[-1] = 0
    assert rise(np.array(values, dtype=np.int64)) is None


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=60))
def test_the_floor_is_the_least_of_what_follows(values):
    array = np.array(values)
    assert floor(array).tolist() == [int(array[i:].min()) for i in range(len(array))]


def test_an_outlier_does_not_bend_the_slope():
    x = np.arange(30.0)
    y = 5 * x
    y[7] = 1e9
    assert theil_sen(x, y) == 5.0


def test_confidence_grows_with_the_number_of_rises():
    short, long = rise(np.arange(12)), rise(np.arange(60))
    assert short is not None
    assert long is not None
    assert short.confidence < long.confidence <= 0.99


@pytest.mark.filterwarnings("error")
def test_points_at_one_place_have_no_slope_between_them():
    assert theil_sen(np.array([2.0, 2.0, 4.0]), np.array([0.0, 9.0, 9.0])) == 2.25
    assert theil_sen(np.array([2.0, 2.0]), np.array([0.0, 9.0])) == 0.0
    assert theil_sen(np.zeros(0), np.zeros(0)) == 0.0


def test_of_pairs_that_rise_noise_has_half_and_a_line_all():
    assert rising_share(np.arange(600.0)) == 1.0
    assert rising_share(np.array([1.0, 0.0, 1.0, 0.0])) == 1 / 6
    assert rising_share(np.full(30, 7.0)) == 0.0


def test_a_level_rises_where_its_readings_do_up_to_the_end():
    steps = np.arange(30.0)
    noisy = 100.0 + 10 * steps + np.where(steps % 2, 15.0, 0.0)
    found = level_rise(steps, noisy)
    assert found is not None
    assert found.per_step == pytest.approx(10, rel=0.02)


@pytest.mark.parametrize(
    "levels",
    [
        np.where(np.arange(30) < 12, 100.0, 300.0),  # one jump, and flat after it
        100.0 + np.minimum(np.arange(30), 14) * 10.0,  # settled
        1e6 + np.arange(30.0),  # a rise that is lost in the level
        100.0 + np.arange(30) % 3 * 50.0,
    ],
    ids=["jump", "settled", "slight", "noise"],
)
def test_a_level_that_does_not_go_on_rising_is_none(levels):
    assert level_rise(np.arange(30.0), levels) is None


def test_a_trend_needs_five_step_ends():
    steps = np.arange(3.0, 8.0)
    assert trend(steps[:4], steps[:4]) is None
    found = trend(steps, 512 * steps)
    assert found is not None
    assert (found.bytes_per_step, found.first_step, found.last_step, found.rising) == (512, 3, 7, 1)
