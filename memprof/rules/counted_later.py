"""What counters say of growth after the last window: whether it went on, or only came and went."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from memprof.run import Steps
from memprof.trace import NOT_RECORDED

__all__ = ["came_and_went"]

_FEWEST_ROWS = 8
_LEAST_TIMES = 2
"""As much as was seen to grow has to be expected since: a shorter time tells nothing."""
_MOST_RISE = 0.1
"""Of what was expected."""
_LEAST_RISES = 2


def came_and_went(steps: Steps, last_step: int, nbytes: int, per_step: float) -> bool:
    """Whether ``nbytes`` that grew up to ``last_step`` were given back and made anew since.

    At ``per_step`` bytes a step much more should be there. But the bytes of all tensors rise and
    fall, by half of what grew at the least; they have been as much below that step's level and come
    back to it: conversations that begin and end, a cache that is emptied. Where a loop is over,
    what it kept may be given back as well, but does not come again.
    """
    counted = steps.allocated != NOT_RECORDED
    before = np.flatnonzero(counted & (steps.last <= last_step))
    later = np.flatnonzero(counted & (steps.first > last_step))
    if not len(before) or len(later) < _FEWEST_ROWS:
        return False
    level, series = int(steps.allocated[before[-1]]), steps.allocated[later]
    expected = per_step * float(steps.last[later[-1]] - last_step)
    if expected < _LEAST_TIMES * nbytes:
        return False
    if int(series[-(len(series) // 4) :].min()) - level > _MOST_RISE * expected:
        return False
    lowest = int(series.argmin())
    if int(series[lowest]) > level - nbytes // 2:
        return False
    has_risen = int(series[lowest:].max()) >= level
    return has_risen and _rises(series, nbytes // 2) >= _LEAST_RISES


def _rises(series: npt.NDArray[np.int64], nbytes: int) -> int:
    """How often a series rises by ``nbytes``, each time after it fell by as much."""
    rises, low, high, falls = 0, int(series[0]), int(series[0]), False
    for value in series.tolist():
        low, high = min(low, value), max(high, value)
        if not falls and value >= low + nbytes:
            rises, falls, high = rises + 1, True, value
        elif falls and value <= high - nbytes:
            falls, low = False, value
    return rises
