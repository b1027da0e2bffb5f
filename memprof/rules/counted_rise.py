"""Whether bytes that were counted at step ends, in windows and between them, rise to the end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memprof.run import Steps
from memprof.trace import NOT_RECORDED
from memprof.views.trend import floor, rise, rises_throughout

__all__ = ["CountedRise", "counted_rise", "repeated_rise", "stays_level"]

Ints = npt.NDArray[np.int64]

_LEAST_RISE = 4 << 20
"""What rises by less over a whole recording, nobody looks for."""
_LEAST_SHARE = 0.1
"""Of the most that was allocated at a step's end; likewise."""
_LEAST_LATE = 4
"""Counts in the later half of the steps: with fewer, the rate must be what it was before."""
_AS_FAST = 0.75
"""Of the rate before."""
_AT_ONCE = 0.75
"""Of a rise, that comes at one place: a data set that is read in the end. What doubles each time
comes to half of it there."""
_SHORT = 0.05
"""Of the steps over which it rises."""
_LEAST_OF_GROWTH = 0.5
"""What grows makes the whole rise by so much of it, or takes the place of something else."""


@dataclass(frozen=True, slots=True, eq=False)
class CountedRise:
    """The floor of a device's allocated bytes rises up to the end."""

    bytes: int
    """By which it rose from the first step after the warm-up to the last."""
    first_step: int
    last_step: int
    steps: Ints
    """Those with figures, from the first step on."""
    least: Ints
    """The floor after each."""

    @property
    def per_step(self) -> float:
        """Bytes."""
        return self.bytes / max(1, self.last_step - self.first_step)

    def within(self, steps: Ints) -> int:
        """Bytes by which it rose in some of the steps, and not between them."""
        is_within = np.isin(self.steps[1:], steps) & (np.diff(self.steps) == 1)
        return int(np.diff(self.least)[is_within].sum())


def counted_rise(steps: Steps) -> CountedRise | None:
    """How the allocated bytes of one device rise; None where they do not, or by little."""
    with_figures = steps.allocated != NOT_RECORDED
    allocated, numbers = steps.allocated[with_figures], steps.last[with_figures]
    risen = rise(allocated)
    if risen is None:
        return None
    low, high = int(risen.places[0]) - 1, int(risen.places[-1])
    least = floor(allocated)
    total = int(least[high] - least[low])
    rising = slice(low, high + 1)
    if repeated_rise(least[rising], numbers[rising]) < max(
        _LEAST_RISE, _LEAST_SHARE * int(allocated.max())
    ):
        return None
    if not rises_throughout(_by_step(numbers, least, low), 0):
        return None
    if not _goes_on(numbers, least, low, high):
        return None
    return CountedRise(total, int(numbers[low]), int(numbers[high]), numbers[low:], least[low:])


def repeated_rise(least: Ints, numbers: Ints) -> int:
    """Bytes by which a floor rises again and again: all, or without what it rises by at once.

    ``numbers`` are those of the steps with figures. Between two that lie far apart it may have
    risen many times.
    """
    total = int(least[-1] - least[0]) if len(least) else 0
    is_short = np.diff(numbers) <= max(1.0, _SHORT * float(numbers[-1] - numbers[0]))
    largest = int(np.diff(least)[is_short].max(initial=0))
    return total - largest if largest > _AT_ONCE * total else total


def stays_level(steps: Steps, first_step: int, last_step: int, nbytes: int) -> bool:
    """Whether the floor of the allocated bytes rose by much less than ``nbytes`` over some steps.

    Then as much as was made has gone: items of a list that is full are replaced by those of another
    line. False where nothing was counted before them or at their end.
    """
    with_figures = steps.allocated != NOT_RECORDED
    numbers, least = steps.last[with_figures], floor(steps.allocated[with_figures])
    before = np.flatnonzero(numbers < first_step)
    until = np.flatnonzero(numbers >= last_step)
    if not len(before) or not len(until):
        return False
    return int(least[until[0]] - least[before[-1]]) < _LEAST_OF_GROWTH * nbytes


def _by_step(numbers: Ints, least: Ints, low: int) -> Ints:
    """The floor from a place on at steps of equal distance: some stretches are counted densely."""
    steps = np.linspace(numbers[low], numbers[-1], len(numbers) - low)
    between: Ints = np.interp(steps, numbers[low:], least[low:]).astype(np.int64)
    return between


def _goes_on(numbers: Ints, least: Ints, low: int, high: int) -> bool:
    """Whether it rises late as it did early, where few of the late steps were counted.

    A cache that has filled in the meantime stands higher than it stood early on, too.
    """
    middle = (int(numbers[low]) + int(numbers[high])) / 2
    late = int((numbers > middle).sum())
    last_early = int(np.searchsorted(numbers, middle, side="right")) - 1
    if late >= _LEAST_LATE or last_early <= low:
        return True
    early, rest = (
        (least[end] - least[begin]) / max(1, int(numbers[end] - numbers[begin]))
        for begin, end in ((low, last_early), (last_early, high))
    )
    return bool(rest >= _AS_FAST * early)
