"""Counters after the last window tell what came and went from what goes on growing."""

from __future__ import annotations

import numpy as np
import pytest

from memprof.rules.counted_later import came_and_went
from memprof.run import Steps

LEVEL, GREW, PER_STEP = 1_000, 400, 20.0


def steps(later):
    """Twenty recorded steps that end at `LEVEL`, then one row for ten steps each."""
    recorded = np.arange(20)
    first = np.concatenate([recorded, 20 + 10 * np.arange(len(later))])
    last = np.concatenate([recorded, 29 + 10 * np.arange(len(later))])
    allocated = np.concatenate([np.linspace(600, LEVEL, 20).astype(np.int64), later])
    return Steps.build(first=first, last=last, allocated=allocated)


@pytest.mark.parametrize(
    ("later", "is_level"),
    [
        ([900, 700, 950, 1000, 650, 980, 1010, 690, 940, 1005, 700, 1000], True),
        # goes on
        ([1100 + 100 * at for at in range(12)], False),
        ([1100, 700, 1300, 700, 1500, 700, 1700, 700, 2300, 2400, 2500, 2600], False),
        # its loop is over: what it kept stays, or is given back for good
        ([1000] * 12, False),
        ([500] * 12, False),
        ([1000, 500, 1000, 500, 500, 500, 500, 500, 500, 500, 500, 500], False),
        # too few rows, or too short a time
        ([700, 1000, 700, 1000, 700, 1000, 700], False),
    ],
)
def test_what_is_given_back_and_comes_again_does_not_go_on_growing(later, is_level):
    assert came_and_went(steps(later), 19, GREW, PER_STEP) is is_level


def test_a_time_in_which_little_was_to_be_expected_tells_nothing():
    later = [900, 700, 950, 1000, 650, 980, 1010, 690, 940, 1005, 700, 1000]
    assert not came_and_went(steps(later), 19, GREW, 0.1)


def test_what_was_not_counted_tells_nothing():
    assert not came_and_went(steps([-1] * 20), 19, GREW, PER_STEP)
