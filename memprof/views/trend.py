"""Whether a series at step ends grows: its floor, its slope, and how its values are ordered."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memprof.trace import WARM_UP
from memprof.units import format_bytes

__all__ = [
    "WARM_UP",
    "LevelRise",
    "Rise",
    "SlopeRange",
    "Trend",
    "evenly_spaced",
    "floor",
    "level_rise",
    "rise",
    "rises_throughout",
    "rising_share",
    "slope_range",
    "theil_sen",
    "trend",
]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_FEWEST_STEPS = 5
"""Step ends below which there is no trend."""
_LEAST_RISES = 4
_OFTEN = 16
"""Rises of which a quarter of the time has some."""
_LATE_RISES = 8
"""Rises that are needed where they begin in the second half only."""
_MANY_RISES = 6
"""With fewer, they must come at regular distances."""
_LEAST_RATIO = 0.5
"""Rises in the second half of the series over those in the first: below, it settles down."""
_DROP = 0.2
"""A fall by this share of what had been reached is a reset, and begins a new tooth of a saw."""
_MOST_POINTS = 512
"""Points of a series that are compared with each other; of more, so many at regular distances."""
_DEVIATIONS = 2.576
"""Of a normal distribution, within which 99 of 100 values lie."""
_RISING_PAIRS = 0.75
"""Share of pairs of points that must be in rising order; noise has half of them."""
_NEARLY_ALL_PAIRS = 0.9
_SMALLEST_BLOCK = 512
_LEAST_RISE = 0.1
"""Of the level at first: what changes less is noise."""
_TAIL = 20
"""One in so many of the values comes last, and two at least."""
_LATER_HALF, _LAST_QUARTER = 0.25, 0.12
"""Of the rise: what goes on as it began has half of it, and a quarter."""
_POINTS_OF_NOISE = 256
_FEWEST_READINGS = 12
"""Readings of a level below which three jumps of a cache look like growth."""


@dataclass(frozen=True, slots=True, eq=False)
class Rise:
    """A series that keeps growing, and what is known about how it does."""

    places: Ints
    """Where its floor rises."""
    per_place: float
    """Units a place: from the first rise to the last, what was added and never went away again."""
    slope: float
    """The same by Theil-Sen, which no outlier bends."""
    confidence: float
    """0 to 1: how many rises there were, how regular, how near to the end."""
    every: int
    """The usual distance between two rises: 1 is every step."""


@dataclass(frozen=True, slots=True, eq=False)
class LevelRise:
    """A level, read now and then, that keeps rising: bytes that a driver or a counter told."""

    steps: Floats
    levels: Floats
    per_step: float
    """By Theil-Sen, which no outlier bends."""


def floor(series: Ints) -> Ints:
    """The least value from each place on: what is never given back."""
    least: Ints = np.minimum.accumulate(series[::-1])[::-1]
    return least


def rise(series: Ints, weights: Ints | None = None, first: int = WARM_UP) -> Rise | None:
    """How ``series`` (a count a step) keeps growing; None where it does not.

    It does when its floor has risen many times, up to the end and no less often in the second half
    than in the first. A bounded cache has stopped some steps before the end; what settles (tables
    for ever longer sequences, caches with few keys) rises ever more rarely; a saw-tooth is judged
    up to its last reset, where its floor is flat; the floor of noise rises near the end only.

    Args:
        series: a count at every place.
        weights: bytes at every place, for ``per_place``; the series itself if left out.
        first: places before this one are warm-up.
    """
    amounts = series if weights is None else weights
    series, amounts = series[first:], amounts[first:]
    end, was_reset = _end_of_last_tooth(series)
    if end < _LEAST_RISES:
        return None
    series, amounts = series[:end], amounts[:end]
    places = np.flatnonzero(np.diff(floor(series)) > 0) + 1
    steady = not was_reset and _never_falls(series)
    if not _keeps_rising(places, end, steady=steady):
        return None
    least = floor(amounts)
    if len(places) >= _OFTEN and _levels_off(least, int(places[0]) - 1):
        return None
    return _measure(places, least, first, end)


def _levels_off(least: Ints, low: int) -> bool:
    """Whether little of what a floor rises by comes in the last quarter: of few keys, say."""
    high = len(least) - 1
    late = least[low + (high - low) * 3 // 4]
    return bool(least[high] - late < _LAST_QUARTER * (least[high] - least[low]))


def rises_throughout(least: Ints, low: int) -> bool:
    """Whether a floor rises over the whole of a series: what filled a cache early on does not.

    The last values are left out: they are their own floor, whatever follows them.

    Args:
        least: the `floor` of a series.
        low: the place before its first rise.
    """
    high = len(least) - 1 - max(2, len(least) // _TAIL)
    if high <= low:
        return False
    total = least[high] - least[low]
    half, late = (least[low + (high - low) * part // 4] for part in (2, 3))
    return bool(least[high] - half >= _LATER_HALF * total > 0) and bool(
        least[high] - late >= _LAST_QUARTER * total
    )


@dataclass(frozen=True, slots=True)
class SlopeRange:
    """A slope, and between what two it lies."""

    slope: float
    """The median of the slopes between all pairs, as by `theil_sen`."""
    low: float
    high: float


def slope_range(x: Floats, y: Floats) -> SlopeRange:
    """The Theil-Sen slope and the interval that holds the true one in 99 of 100 cases (Sen 1968).

    Without two points at different places it is everything.
    """
    slopes = np.sort(_pair_slopes(x, y))
    if not len(slopes):
        return SlopeRange(0.0, -np.inf, np.inf)
    points = min(len(x), _MOST_POINTS)
    spread = _DEVIATIONS * np.sqrt(points * (points - 1) * (2 * points + 5) / 18)
    low, high = (len(slopes) - spread) / 2, (len(slopes) + spread) / 2
    return SlopeRange(
        slope=float(np.median(slopes)),
        low=float(slopes[int(low)]) if low >= 0 else -np.inf,
        high=float(slopes[int(high)]) if high < len(slopes) else np.inf,
    )


def theil_sen(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> float:
    """The median of the slopes between all pairs of at most 512 points (Sen 1968).

    Points at the same place, as in a damaged file, have no slope between them.
    """
    slopes = _pair_slopes(x, y)
    return float(np.median(slopes)) if len(slopes) else 0.0


def _pair_slopes(x: Floats, y: Floats) -> Floats:
    some = evenly_spaced(len(x), _MOST_POINTS)
    x, y = x[some], y[some]
    left, right = np.triu_indices(len(x), 1)
    apart = x[right] != x[left]
    left, right = left[apart], right[apart]
    slopes: Floats = (y[right] - y[left]) / (x[right] - x[left])
    return slopes


def rising_share(y: Floats) -> float:
    """The share of the pairs of values of which the later one is larger: 0.5 is noise."""
    y = y[evenly_spaced(len(y), _MOST_POINTS)]
    left, right = np.triu_indices(len(y), 1)
    return float((y[right] > y[left]).mean())


def level_rise(steps: Floats, levels: Floats) -> LevelRise | None:
    """How a level that was read after ``steps`` rises up to the end; None where it does not.

    What is read now and then is noisy, and single rises say nothing: unlike in `rise`, most pairs
    of readings must be in rising order, the last third above the middle one, and that above the
    first.
    """
    if len(levels) < _FEWEST_READINGS:
        return None
    some = levels[evenly_spaced(len(levels), _POINTS_OF_NOISE)]
    early, middle, late = (float(np.median(part)) for part in np.array_split(some, 3))
    risen = late - early > _LEAST_RISE * max(1.0, abs(early))
    if not (early < middle < late and risen and rising_share(some) >= _RISING_PAIRS):
        return None
    per_step = theil_sen(steps, levels)
    return LevelRise(steps, levels, per_step) if per_step > 0 else None


@dataclass(frozen=True, slots=True)
class Trend:
    """How a count of bytes at step ends changed."""

    bytes_per_step: float
    """Theil-Sen slope (Sen 1968): the median over all pairs, which outliers do not bend."""
    first_step: int
    last_step: int
    rising: float
    """Share of the pairs of steps between which it rose: 0.5 is noise, 1 rises every time."""

    @property
    def keeps_rising(self) -> bool:
        """Whether nearly all pairs of steps are in rising order, by more than a block a step."""
        return self.bytes_per_step > _SMALLEST_BLOCK and self.rising > _NEARLY_ALL_PAIRS

    @property
    def is_telling(self) -> bool:
        """Whether the rate says something: that bytes keep rising, or that they do not change."""
        return self.keeps_rising or not round(self.bytes_per_step)

    def __str__(self) -> str:
        rate = round(self.bytes_per_step)
        rate_text = f"{format_bytes(rate)} per step" if rate else "none"
        return f"{rate_text} over steps {self.first_step} to {self.last_step}"


def trend(steps: Floats, values: Floats) -> Trend | None:
    """How ``values`` at the ends of ``steps`` changed; None with fewer than five of them."""
    if len(steps) < _FEWEST_STEPS:
        return None
    return Trend(theil_sen(steps, values), int(steps[0]), int(steps[-1]), rising_share(values))


def evenly_spaced(length: int, most: int) -> Ints:
    """So many places of a series at regular distances; all of a short one."""
    places = np.linspace(0, max(length - 1, 0), min(length, most))
    return np.unique(places.astype(np.int64))


def _end_of_last_tooth(series: Ints) -> tuple[int, bool]:
    """How much of a series can be judged: all, or up to its last reset; and whether it has one."""
    if not len(series):
        return 0, False
    top = 0
    last = -1
    for place, value in enumerate(series.tolist()):
        if value < top * (1 - _DROP):
            last, top = place, value
        top = max(top, value)
    return (len(series), False) if last < 0 else (last + 1, True)


def _never_falls(series: Ints) -> bool:
    falls = int((np.diff(series) < 0).sum())
    return falls <= len(series) // 50


def _keeps_rising(places: Ints, end: int, *, steady: bool) -> bool:
    """Whether rises at ``places`` of ``end`` places go on for ever, as far as one can see."""
    if len(places) < _LEAST_RISES:
        return False
    gaps = np.diff(places)
    if end - 1 - places[-1] > max(2, 1.5 * float(np.median(gaps)), float(gaps.max())):
        return False
    if len(places) < _MANY_RISES and gaps.max() > 1.5 * gaps.min() + 1:
        return False
    begin = int(places[0]) - 1 if steady else 0
    if begin > end // 2 and len(places) < _LATE_RISES:
        return False
    middle = (begin + end) / 2
    early, late = int((places <= middle).sum()), int((places > middle).sum())
    if late < _LEAST_RATIO * early:
        return False
    return steady or early >= _LEAST_RATIO * 0.5 * late


def _measure(places: Ints, amounts: Ints, first: int, end: int) -> Rise:
    low, high = int(places[0]), int(places[-1])
    gaps = np.diff(places)
    steps = np.arange(low, high + 1)
    return Rise(
        places=places + first,
        per_place=float(amounts[high] - amounts[low]) / (high - low),
        slope=theil_sen(steps.astype(np.float64), amounts[low : high + 1].astype(np.float64)),
        confidence=_confidence(places, gaps, end),
        every=max(1, round(float(np.median(gaps)))),
    )


def _confidence(places: Ints, gaps: Ints, end: int) -> float:
    """Never 1: more rises, regular ones and a long stretch of them make it surer."""
    many = 1 - 0.5 ** (len(places) / 4)
    regular = 1 - 0.3 * min(1.0, float(gaps.std() / gaps.mean()))
    span_share = 0.7 + 0.3 * (places[-1] - places[0]) / max(1, end - 1)
    return round(min(0.99, float(many * regular * span_share)), 3)
