"""When to record every allocation and when only counters: a pure schedule without a clock.

The tracker tells it what each step took; it answers whether a window should be open. Opening and
closing windows, and the measuring itself, are `tracker`'s.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

__all__ = ["Climb", "OverheadMeter", "Policy", "Reason", "StepCost", "WindowSchedule"]


class Reason(str, enum.Enum):
    """Why a window opened."""

    START = "start"
    """Recording begins with everything, and goes on while that is cheap."""
    REGULAR = "regular"
    GROWTH = "growth"
    """Allocated bytes at step ends have begun to climb."""
    FRAGMENTATION = "fragmentation"
    """Reserved bytes that no tensor uses have begun to climb."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What recording may cost."""

    budget: float = 0.01
    """Share of the elapsed time that recording may take on average."""
    allowance_us: int = 5_000_000
    """Time that recording may take in any case, so that a short run is recorded whole."""
    window_steps: int = 5
    """Steps in a window after the first. A survivor shows from the third step on."""
    max_events: int = 2_000_000
    """Events in the whole file. Each window may take half of what is left, so it never runs dry."""
    first_gap_us: int = 10_000_000
    """Least time between the first window's end and the next; it doubles from window to window."""
    longest_gap_us: int = 3_600_000_000

    def allowed_us(self, elapsed_us: int) -> float:
        """Overhead that may have added up after ``elapsed_us``."""
        return max(self.allowance_us, self.budget * elapsed_us)


@dataclass(frozen=True, slots=True)
class StepCost:
    """What one step took, our own hooks at its end left out."""

    duration_us: int
    events: int
    """Events recorded in the step; 0 between windows."""
    in_window: bool
    prior_us: float = 0.0
    """What these events probably cost, as long as that was not measured."""


class OverheadMeter:
    """Adds up what recording costs: hooks by the clock, events by comparing steps.

    The cost of an event is a prior until there are enough steps with and without a window to
    compare; then it is the difference of their median durations over the median number of events.
    """

    SAMPLES = 32
    ENOUGH = 5
    """Steps of either kind before their medians are compared."""
    WARM_UP = 3
    """First steps left out: allocators, kernels and caches warm up in them."""
    EVERY = 8
    """Steps between two comparisons, which take some 20 µs."""
    LEAST_EVENT_US = 0.2
    """Appending an event to a list; a noisy machine may show a window as faster than none."""

    def __init__(self) -> None:
        """Nothing has been measured yet."""
        self._hooks_us = 0.0
        self._events = 0
        self._prior_us = 0.0
        self._edge_us = 0.0
        self._searches_us = 0.0
        self._measured_us: float | None = None
        self._steps = 0
        self._inside: deque[StepCost] = deque(maxlen=self.SAMPLES)
        self._outside: deque[int] = deque(maxlen=self.SAMPLES)

    def hook(self, duration_us: float) -> None:
        """Time measured inside our own callbacks."""
        self._hooks_us += duration_us

    def edge(self, duration_us: float) -> None:
        """What opening or closing a window took; counted in the hook around it already."""
        self._edge_us = max(duration_us, self._edge_us / 2)

    def search(self, duration_us: float) -> None:
        """What a search for holders took; counted in the hook around it already."""
        self._searches_us += duration_us

    def step(self, cost: StepCost) -> None:
        """One step of the job."""
        self._steps += 1
        self._events += cost.events
        self._prior_us += cost.prior_us
        if self._steps <= self.WARM_UP:
            return
        if cost.in_window:
            self._inside.append(cost)
        else:
            self._outside.append(cost.duration_us)
        if self._steps % self.EVERY == 0:
            self._measured_us = self._compared()

    @property
    def event_us(self) -> float:
        """What recording one event costs."""
        if self._measured_us is not None:
            return self._measured_us
        return self._prior_us / self._events if self._events else 0.0

    def _compared(self) -> float | None:
        if min(len(self._inside), len(self._outside)) < self.ENOUGH:
            return None
        events = median(cost.events for cost in self._inside)
        extra = median(cost.duration_us for cost in self._inside) - median(self._outside)
        return max(self.LEAST_EVENT_US, extra / events) if events else self.LEAST_EVENT_US

    @property
    def total_us(self) -> float:
        """Overhead so far."""
        return self._hooks_us + self._events * self.event_us

    @property
    def recording_us(self) -> float:
        """The same without searches, which have an allowance of their own."""
        return self.total_us - self._searches_us

    def window_us(self, steps: int) -> float:
        """What a window of so many steps will probably cost; 0 before there was one."""
        if not self._inside:
            return 0.0
        events = steps * median(cost.events for cost in self._inside)
        return 2 * self._edge_us + events * self.event_us


class Climb:
    """Says when a series that should stay level has begun to rise.

    Robust against noise and saw-teeth: the medians of three consecutive thirds must rise, by more
    than a share of the level, and most pairs of values must be in rising order (Kendall's tau).
    """

    LENGTH = 24
    EVERY = 4
    """Values between two tests of the series."""
    LEAST_RISE = 64 << 10
    LEAST_SHARE = 1e-4
    LEAST_TAU = 0.6
    """A single jump in the middle has 0.52."""

    def __init__(self) -> None:
        """Nothing seen yet."""
        self._values: deque[int] = deque(maxlen=self.LENGTH)
        self._until_test = self.LENGTH

    def add(self, value: int) -> bool:
        """Whether the series rises, this value included; after a yes it starts afresh."""
        self._values.append(value)
        self._until_test -= 1
        if self._until_test:
            return False
        rises = _rises(list(self._values), self)
        self._until_test = self.LENGTH if rises else self.EVERY
        return rises


def _rises(values: Sequence[int], limits: Climb) -> bool:
    third = len(values) // 3
    first, middle, last = (median(values[i : i + third]) for i in (0, third, 2 * third))
    if not first < middle < last:
        return False
    rise = max(limits.LEAST_RISE, limits.LEAST_SHARE * first)
    return last - first >= rise and _kendall_tau(values) >= limits.LEAST_TAU


def _kendall_tau(values: Sequence[int]) -> float:
    """Pairs in rising order less those in falling order, over all pairs (tau-a)."""
    score = sum((b > a) - (b < a) for i, a in enumerate(values) for b in values[i + 1 :])
    return 2 * score / (len(values) * (len(values) - 1))


class WindowSchedule:
    """Whether a window should be open, asked at every step's end.

    Recording begins in a window. It stays open while all recording so far cost less than the
    start's share of the allowance (or of the budget, where that is more). Later windows are a few
    steps long, open when the budget has room for them and ever more rarely; and at once, out of the
    rest of the allowance, when memory begins to climb.
    """

    START_SHARE = 0.8
    """Of the allowance; the rest is kept for climbs."""

    def __init__(self, policy: Policy, now_us: int) -> None:
        """The first window opens at ``now_us``."""
        self.reason: Reason | None = Reason.START if policy.max_events > 0 else None
        """Why a window is open; None when none is."""
        self.cut = False
        """Whether the window that closed last was cut because it held too many events."""
        self._policy = policy
        self._began_us = now_us
        self._closed_us = now_us
        self._gap_us = policy.first_gap_us
        self._steps_in_window = 0
        self._events_in_window = 0
        self._events_before = 0
        self._climbs = {Reason.GROWTH: Climb(), Reason.FRAGMENTATION: Climb()}

    @property
    def is_open(self) -> bool:
        """Whether every event should be recorded now."""
        return self.reason is not None

    @property
    def room(self) -> int:
        """Events that the open window may still take."""
        return (self._policy.max_events - self._events_before) // 2 - self._events_in_window

    def events_recorded(self, count: int) -> None:
        """Events that were drained from the open window."""
        self._events_in_window += count

    def step_ended(
        self, now_us: int, meter: OverheadMeter, allocated: int = -1, idle: int = -1
    ) -> bool:
        """Whether a window should be open from now on.

        ``allocated`` are bytes of tensors, ``idle`` reserved bytes that no tensor uses; -1 where
        they are not known.
        """
        climbing = self._climbing(allocated, idle)
        if self.reason is None:
            self.reason = self._why_open(now_us, meter, climbing)
            self._steps_in_window = 0
        else:
            self._steps_in_window += 1
            if self._should_close(now_us, meter):
                self._close(now_us)
        return self.is_open

    def _climbing(self, allocated: int, idle: int) -> Reason | None:
        found = None
        for reason, value in ((Reason.FRAGMENTATION, idle), (Reason.GROWTH, allocated)):
            if value >= 0 and self._climbs[reason].add(value):
                found = reason
        return found

    def _why_open(
        self, now_us: int, meter: OverheadMeter, climbing: Reason | None
    ) -> Reason | None:
        elapsed_us = now_us - self._began_us
        expected_us = meter.total_us + meter.window_us(self._policy.window_steps)
        if self.room <= 0:
            return None
        if climbing is not None and expected_us <= self._policy.allowed_us(elapsed_us):
            return climbing
        if now_us - self._closed_us < self._gap_us:
            return None
        return Reason.REGULAR if expected_us <= self._policy.budget * elapsed_us else None

    def _should_close(self, now_us: int, meter: OverheadMeter) -> bool:
        if self.room <= 0:
            return True
        if self.reason is not Reason.START:
            return self._steps_in_window >= self._policy.window_steps
        allowed_us = self._policy.allowed_us(now_us - self._began_us)
        return meter.recording_us > self.START_SHARE * allowed_us

    def _close(self, now_us: int) -> None:
        self.cut = self.room <= 0
        if self.reason is Reason.REGULAR:
            self._gap_us = min(2 * self._gap_us, self._policy.longest_gap_us)
        self.reason = None
        self._closed_us = now_us
        self._events_before += self._events_in_window
        self._events_in_window = 0
