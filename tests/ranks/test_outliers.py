"""The rule by which a value differs from the rest."""

from __future__ import annotations

import numpy as np
import pytest

from memprof.ranks.outlier_test import outliers


def far(*values: float, least: float = 0.0) -> list[int]:
    return np.flatnonzero(outliers(np.array(values, dtype=np.float64), least)).tolist()


def test_the_one_that_differs_is_found_and_does_not_bend_the_rule():
    assert far(10, 11, 12, 10, 11, 12, 1e12) == [6]


def test_the_score_is_3_5_scaled_median_absolute_deviations():
    # Median 100, median absolute deviation 2: 3.5 × 1.4826 × 2 = 10.38.
    rest = [98, 98, 98, 100, 102, 102, 102]
    assert far(*rest, 100 + 10.3) == []
    assert far(*rest, 100 + 10.8, 100 - 10.8) == [7, 8]


def test_among_equal_values_a_difference_of_a_few_percent_is_none():
    assert far(*[100] * 9, 103) == []
    assert far(*[100] * 9, 104) == [9]


def test_differences_below_the_noise_are_none():
    assert far(0, 0, 0, 0, 3, least=1) == []
    assert far(0, 0, 0, 0, 4, least=1) == [4]


def test_of_two_halves_neither_differs():
    assert far(*[20] * 8, *[40] * 8) == []


@pytest.mark.parametrize("values", [(), (1,), (1, 1000)])
def test_of_two_values_neither_differs(values):
    assert far(*values) == []


def test_what_was_not_measured_neither_differs_nor_counts():
    assert far(np.nan, 10, 10, np.nan, 10, 20) == [5]
    assert far(np.nan, np.nan, np.nan, 1) == []
