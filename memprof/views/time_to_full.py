"""When a device is full: at which step, and in what time; from how it grows and what is free.

Whether it grows is `trend`'s to say; what is free is what no other takes. Nothing is said where the
growth is not known well enough to be right within a tenth.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from memprof.records import DeviceInfo
from memprof.run import DeviceRun, Run
from memprof.trace import NOT_RECORDED
from memprof.units import format_bytes, format_count, format_duration
from memprof.views.device_readings import series_of
from memprof.views.most_taken import most_taken
from memprof.views.trend import WARM_UP, SlopeRange, evenly_spaced, rise, slope_range

__all__ = [
    "StepLevels",
    "TimeToFull",
    "capacity",
    "free_on_host",
    "has_gaps",
    "step_levels",
    "time_to_full",
    "times_to_full",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_MOST_POINTS = 512
_FEWEST_POINTS = 24
"""Step ends of a stretch: of fewer, halves cannot be compared."""
_SHORTEST = 8
"""The last eighth of the steps is the shortest stretch that is looked at by itself."""
_LEAST_RISE = 1 << 20
"""Bytes over the stretch: what is smaller fills no device."""
_SURE = 0.08
"""Half the range of the slope, as a share of it, up to which the answer is right within a tenth."""
_RIGHT = 0.1
"""Of the steps that are left: within so many the step is known."""
_CHANCES = (0.005, 0.5, 0.995)
_MOST_ROWS = 1_000_000
_SAME = 0.03
"""Slopes of two halves that differ by this share are one slope, however exact both are."""
_FLAT = 0.05
"""Of the later slope: what rose by less before did not rise."""
_FARTHEST, _FARTHEST_OF_PART = 100, 2
"""Times the steps that were looked at: nobody knows what lies beyond. Of a part that rises faster
than what was before it, less is known: the growth may be getting faster still."""


@dataclass(frozen=True, slots=True, eq=False)
class StepLevels:
    """What a device held at step ends, in order of steps; bytes and microseconds."""

    steps: Floats
    allocated: Floats
    """At the ends of the steps."""
    peaks: Floats
    """Highest within them, of `most_taken`."""
    end_us: Floats
    """When they ended; 0 where not known."""


@dataclass(frozen=True, slots=True)
class TimeToFull:
    """A device that fills up: how fast, and when it is full."""

    device: str
    bytes_per_step: float
    free_bytes: int
    """What was left above the highest that the last steps came to."""
    last_step: int
    """The last one that it was reckoned from."""
    full_step: int
    """The first step that does not fit; where that is not ``exact``, it comes before this one."""
    left_us: int
    """Until then, from the end of the last step; -1 where steps have no times."""
    exact: bool = True
    """Known within a tenth of the steps that are left; else they differ more than that."""
    ended: bool = False
    """The run ended before that: it is what would have come."""

    @property
    def steps_left(self) -> int:
        """Steps that still fit, after the last one."""
        return self.full_step - self.last_step

    @property
    def when(self) -> str:
        """``at about step 41,200, in 6 h 05 min``; ``before step 41,200, within 3 min``."""
        at = "at about" if self.exact else "before"
        step = f"{at} step {_rounded(self.full_step, self.steps_left)}"
        if self.left_us < 0:
            return step
        time = format_duration(self.left_us)
        if self.ended:
            return f"{step}, {time} later"
        return f"{step}, {'in' if self.exact else 'within'} {time}"

    def __str__(self) -> str:
        runs_out = "would have run out" if self.ended else "runs out"
        rate = format_bytes(round(self.bytes_per_step))
        return f"{self.device} {runs_out} of memory {self.when} ({rate} more per step)"


def _rounded(step: int, steps_left: int) -> str:
    """As exact as it is known: to a hundredth of what is left."""
    unit = 10 ** max(0, len(str(max(steps_left, 1))) - 2)
    return format_count(round(step / unit) * unit)


def time_to_full(device: str, levels: StepLevels, room: float) -> TimeToFull | None:
    """When ``levels`` reach ``room`` bytes; None where that is not known.

    It is where what is allocated at step ends grows, or the peaks within steps do; where it has
    grown in the same way all along, or since it began; and where the slope is known within a few
    percent (Sen's interval). What levels off, saws, has just begun, or would take a hundred times
    the steps that were seen, is not told.

    Args:
        device: for the answer.
        levels: at step ends, the warm-up among them.
        room: the most bytes that tensors can come to, of `capacity`.
    """
    if room <= 0:
        return None
    levels = _some(levels, np.flatnonzero((levels.steps >= WARM_UP) & (levels.allocated >= 0)))
    few = _some(levels, evenly_spaced(len(levels.steps), _MOST_POINTS))
    growth, of_peaks = _growth(few.steps, few.allocated), _growth(few.steps, few.peaks)
    if growth is None or (of_peaks is not None and of_peaks.least > growth.slope):
        growth = of_peaks  # what is in use within steps grows, or fragmentation does
    if growth is None:
        return None
    growing_levels = _some(levels, np.flatnonzero(levels.steps >= few.steps[growth.begin]))
    return _until_full(device, growing_levels, room, growth)


def _some(levels: StepLevels, rows: Ints) -> StepLevels:
    return StepLevels(*(getattr(levels, name)[rows] for name in StepLevels.__slots__))


@dataclass(frozen=True, slots=True)
class _Growth:
    slope: float
    unsure: float
    """By which share of it the slope may be another."""
    least: float
    begin: int = 0
    """The point from which on it holds."""
    farthest: float = 0.0
    """For how many steps more it may be trusted."""


def _growth(steps: Floats, series: Floats) -> _Growth | None:
    begin, length = 0, len(series)
    while length - begin >= max(_FEWEST_POINTS, length // _SHORTEST):
        x, y = steps[begin:], series[begin:]
        half = len(x) // 2
        early, late = slope_range(x[:half], y[:half]), slope_range(x[half:], y[half:])
        if _is_same(early, late):
            slope = _sure_slope(x, y)
            if slope is None:
                return None
            began = _began_within(steps, series, begin, slope.slope)
            times = _FARTHEST if began else _FARTHEST_OF_PART
            return replace(slope, begin=begin, farthest=times * float(x[-1] - x[0]))
        if late.slope <= early.slope:
            return None  # it levels off, or is noise
        begin += half
    return None


def _is_same(early: SlopeRange, late: SlopeRange) -> bool:
    """Whether two halves of a stretch grow alike, as far as can be told."""
    if abs(late.slope - early.slope) <= _SAME * abs(late.slope):
        return True
    return early.low <= late.high and late.low <= early.high


def _sure_slope(x: Floats, y: Floats) -> _Growth | None:
    """None where it does not keep growing, or where the slope is not known well enough."""
    if rise(y.astype(np.int64), first=0) is None:
        return None
    interval = slope_range(x, y)
    if interval.slope * (x[-1] - x[0]) < _LEAST_RISE:
        return None
    unsure = (interval.high - interval.low) / 2 / interval.slope
    return _Growth(interval.slope, unsure, interval.low) if unsure <= _SURE else None


def _began_within(steps: Floats, series: Floats, begin: int, slope: float) -> bool:
    """Whether nothing grew at first: then the growth that was found is all that there is."""
    first = begin // 2
    if first < 2:
        return begin == 0
    return abs(slope_range(steps[:first], series[:first]).slope) <= _FLAT * slope


def _until_full(device: str, levels: StepLevels, room: float, growth: _Growth) -> TimeToFull | None:
    later, slope = len(levels.steps) // 2, growth.slope
    steps = levels.steps[later:]
    above = np.sort(np.maximum(levels.peaks, levels.allocated)[later:] - slope * steps)
    last, now = float(steps[-1]), slope * float(steps[-1])
    if (room - now - float(above[-1])) / slope > growth.farthest:
        return None
    each = max(1.0, float(np.median(np.diff(steps))))
    early, middle, late = _first_above(above + now - room, slope * each)
    exact = math.hypot((late - early) / 2, growth.unsure * middle) <= _RIGHT * middle
    steps_left = each * (middle if exact else late)
    return TimeToFull(
        device=device,
        bytes_per_step=slope,
        free_bytes=max(0, round(room - now - float(above[-1]))),
        last_step=int(last),
        full_step=int(last + steps_left),
        left_us=_left_us(levels.steps[later:], levels.end_us[later:], steps_left),
        exact=exact,
    )


def _first_above(levels: Floats, rise_each: float) -> tuple[int, int, int]:
    """After how many rows one is above 0: hardly yet, as likely as not, and nearly surely.

    ``levels`` are where rows were seen to lie, in order, as of the last one; each next one lies as
    one of them, and ``rise_each`` higher than the one before.
    """
    certain = max(1, int(np.ceil(-levels[0] / rise_each)))
    first = max(0, int(np.floor(-levels[-1] / rise_each)))
    rows = np.arange(first, min(certain, first + _MOST_ROWS) + 1)
    above = 1 - np.searchsorted(levels, -rise_each * rows) / len(levels)
    with np.errstate(divide="ignore"):
        chance = 1 - np.exp(np.cumsum(np.log1p(-above)))
    places = [min(int(np.searchsorted(chance, share)), len(rows) - 1) for share in _CHANCES]
    early, middle, late = (max(1, int(rows[place])) for place in places)
    return early, middle, late


def _left_us(steps: Floats, end_us: Floats, steps_left: float) -> int:
    """By what a step has taken lately, with all pauses in between."""
    timed = np.flatnonzero(end_us > 0)
    if len(timed) < 2 or steps[timed[-1]] <= steps[timed[0]]:
        return NOT_RECORDED
    first, last = timed[0], timed[-1]
    each = max(0.0, (end_us[last] - end_us[first]) / (steps[last] - steps[first]))
    return int(steps_left * each)


# -- of a recording ----------------------------------------------------------------------------


def times_to_full(run: Run) -> Iterator[TimeToFull]:
    """Of every device of a recording that fills up and has not run out of memory yet."""
    for device in run.devices:
        if any(one.finding == "oom" and one.device == device.device for one in run.findings):
            continue
        levels = step_levels(device)
        room = capacity(
            device.info,
            allocated=float(levels.allocated[-1]) if len(levels.allocated) else -1.0,
            others=_others(run, device),
            host_free=free_on_host(run),
        )
        estimate = time_to_full(device.device, levels, room)
        if estimate is not None:
            yield replace(estimate, ended=run.footer is not None)


def has_gaps(info: DeviceInfo) -> bool:
    """Whether parts of segments cannot be given back: not where segments expand."""
    expandable = info.settings.get("expandable_segments")
    if isinstance(expandable, bool):
        return not expandable
    # The allocator's own reader of settings is long to import, and this is asked in the job.
    configurations = (
        info.settings.get(name) for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    )
    return not any(
        "expandable_segments:true" in str(one).replace(" ", "").lower() for one in configurations
    )


def step_levels(device: DeviceRun) -> StepLevels:
    """The rows of a device's steps in order, each step once."""
    steps = device.steps
    recorded_rows = np.flatnonzero(steps.allocated != NOT_RECORDED)
    last, row = np.unique(
        steps.last[recorded_rows], return_index=True
    )  # a damaged file repeats steps
    rows = recorded_rows[row]
    allocated = steps.allocated[rows]
    gaps = steps.inactive_split[rows] if has_gaps(device.info) else np.full(len(rows), -1)
    columns = (allocated.tolist(), steps.peak_allocated[rows].tolist(), gaps.tolist())
    peaks = np.array([most_taken(*row) for row in zip(*columns, strict=True)])
    return StepLevels(
        steps=last.astype(np.float64),
        allocated=allocated.astype(np.float64),
        peaks=peaks.astype(np.float64),
        end_us=np.maximum(steps.end_us[rows], 0).astype(np.float64),
    )


def capacity(info: DeviceInfo, *, allocated: float, others: float, host_free: float) -> float:
    """The most bytes that tensors can come to on a device; 0 where nobody knows.

    Of a CUDA device its memory, less ``others`` (what the driver says that other processes have,
    and this one beyond torch), and within the share that the process was allowed. Of the host what
    is ``allocated`` to tensors, and what is free besides (-1: not known).
    """
    if info.device == "cpu":
        return allocated + host_free if min(allocated, host_free) >= 0 else 0.0
    total = info.total_bytes
    return min(total * info.memory_fraction, total - others) if total > 0 else 0.0


def _others(run: Run, device: DeviceRun) -> float:
    """Bytes on a device that torch had not reserved, at the last look."""
    used = series_of(run, device.device, "used")
    if used is None:
        return 0.0
    last_reading = np.flatnonzero(~np.isnan(used.values))[-1]
    at = int(np.searchsorted(device.steps.end_us, used.time_us[last_reading], side="right")) - 1
    reserved = float(device.steps.reserved[at]) if at >= 0 else 0.0
    return max(0.0, float(used.values[last_reading]) - max(0.0, reserved))


def free_on_host(run: Run) -> float:
    """Bytes that the host, or the control group of the process, still had; -1 where not known."""
    free_values = []
    for name in ("available", "limit_free"):
        series = series_of(run, "host", name)
        if series is not None:
            free_values.append(float(series.values[~np.isnan(series.values)][-1]))
    return min(free_values, default=-1.0)
