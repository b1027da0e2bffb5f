"""What counters say of a rise: how much of it came in windows."""

from __future__ import annotations

import numpy as np

from memprof.rules.counted_rise import CountedRise


def test_what_rises_between_two_windows_is_none_of_theirs():
    steps = np.array([*range(5), 10, 11, 40])
    least = np.array([0, 1, 2, 3, 4, 50, 51, 90])
    risen = CountedRise(90, 0, 40, steps, least)
    assert risen.within(np.array([0, 1, 2, 3, 4, 10, 11])) == 4 + 1
    assert risen.within(np.array([2, 3])) == 2
    assert risen.within(np.array([], dtype=np.int64)) == 0
