"""When to record every allocation and when only counters: a pure schedule without a clock.

The tracker tells it what each step took; it answers whether a window should be open. Opening and
closing windows, and the measuring itself, are `tracker`'s.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

__all__ = [
    "Climb",
    "End",
    "OverheadMeter",
    "Policy",
    "Quota",
    "Reason",
    "StepCost",
    "WindowSchedule",
]


class Reason(str, enum.Enum):
    """Why a window opened."""

    START = "start"
    """Recording begins with everything, and goes on while that is cheap."""
    REGULAR = "regular"
    GROWTH = "growth"
    """Allocated bytes at step ends have begun to climb."""
    FRAGMENTATION = "fragmentation"
    """Reserved bytes that no tensor uses have begun to climb."""
    CODE = "code"
    """The program runs code of its own that no window has recorded, such as an evaluation."""


class End(str, enum.Enum):
    """Why a window ended."""

    STEPS = "steps"
    """It had as many steps as it should have, or as much time where no step ends."""
    RESERVE = "reserve"
    """The rest of the allowance is kept for the first steps of training."""
    ALLOWANCE = "allowance"
    EVENTS = "max_events"
    BYTES = "max_bytes"
    TABLES = "tables"
    """The stacks and labels that the tracker holds in memory."""
    GAP = "gap"
    """A source lost events; another window follows at once."""
    STOP = "stop"
    """Recording ended."""


class Policy(msgspec.Struct, frozen=True):
    """What recording may cost."""

    budget: float = 0.01
    """Share of the elapsed time that recording may take on average."""
    allowance_us: int = 10_000_000
    """Time that recording may take in any case, so that a short run is recorded whole."""
    window_steps: int = 5
    """Steps in a window after the first. A survivor shows from the third step on."""
    max_events: int = 2_000_000
    """Events in the whole file. Each window may take half of what is left, so it never runs dry."""
    max_bytes: int = 44 << 20
    """Bytes of events, states and tables in the whole file, before compression; likewise, but the
    first window, which holds most programs whole, may take three quarters."""
    max_rows: int = 200_000
    """Stacks, frames and labels in the tracker's memory, some 300 to 500 bytes each; likewise."""
    first_gap_us: int = 10_000_000
    """Least time between the first window's end and the next; it grows with the time gone by."""
    longest_gap_us: int = 3_600_000_000
    ranks: int = 1
    """Processes of the job, which wait for one another."""

    def allowed_us(self, elapsed_us: int) -> float:
        """Overhead that may have added up after ``elapsed_us``."""
        return max(self.allowance_us, self.budget * elapsed_us)


class StepCost(NamedTuple):
    """What one step took, our own hooks in it left out."""

    duration_us: int
    events: int
    """Events recorded in the step; 0 between windows."""
    in_window: bool
    prior_us: float = 0.0
    """What these events probably cost, as far as no source measures it."""


class OverheadMeter:
    """Adds up what recording costs: by the clock where it is spent, the rest by comparing steps.

    What nobody times (torch's own recorder, a source that does not measure itself) has a prior.
    When there are enough steps with and without a window, the prior is corrected by the difference
    of their median durations.
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
    MOST = 4.0
    """Times the prior that a comparison may find: more is another program on the machine."""
    SLOWEST = 1.5
    """Times its own cost that a rank is charged in a job of several: all wait for the slowest.

    Of 64 ranks whose costs spread by a fifth the slowest takes 1.4 times the mean.
    """

    def __init__(self, ranks: int = 1) -> None:
        """Nothing has been measured yet, in a job of so many processes."""
        self._charge = self.SLOWEST if ranks > 1 else 1.0
        self._hooks_us = 0.0
        self._events = self._events_in_step = 0
        self._prior_us = self._prior_in_step_us = 0.0
        self._edge_us = 0.0
        self._aside_us = self._searched_us = 0.0
        self._correction = 1.0
        self._steps = 0
        self._inside: deque[tuple[StepCost, float]] = deque(maxlen=self.SAMPLES)
        self._outside: deque[int] = deque(maxlen=self.SAMPLES)

    def hook(self, duration_us: float) -> None:
        """Time measured inside our own callbacks."""
        self._hooks_us += duration_us

    def edge(self, duration_us: float) -> None:
        """What opening or closing a window took; counted in the hook around it already."""
        self._edge_us = max(duration_us, self._edge_us / 2)
        self._aside_us += duration_us

    def search(self, duration_us: float) -> None:
        """What a search for holders took; counted in the hook around it already."""
        self._aside_us += duration_us
        self._searched_us += duration_us

    def beside(self, duration_us: float) -> None:
        """Time of the processor that a thread of memprof's own used, whatever the job did then."""
        self._hooks_us += duration_us
        self._aside_us += duration_us

    def events(self, count: int, prior_us: float) -> None:
        """Events recorded since the last call, in the middle of a step."""
        self._events += count
        self._events_in_step += count
        self._prior_us += prior_us
        self._prior_in_step_us += prior_us

    def step(self, cost: StepCost) -> None:
        """One step of the job, with all of its events."""
        self._steps += 1
        self._events += cost.events - self._events_in_step
        self._prior_us += cost.prior_us - self._prior_in_step_us
        self._events_in_step, self._prior_in_step_us = 0, 0.0
        spent_us, self._aside_us = max(0.0, self._hooks_us - self._aside_us), self._hooks_us
        if self._steps <= self.WARM_UP:
            return
        if cost.in_window:
            self._inside.append((cost, spent_us))
        else:
            self._outside.append(cost.duration_us)
        if self._steps % self.EVERY == 0:
            self._correction = self._compare()

    @property
    def event_us(self) -> float:
        """What recording one event costs, beyond what is timed."""
        return self._correction * self._prior_us / self._events if self._events else 0.0

    def _compare(self) -> float:
        if min(len(self._inside), len(self._outside)) < self.ENOUGH:
            return self._correction
        prior_us = _median(cost.prior_us for cost, _ in self._inside)
        if not prior_us:
            return self._correction
        events = _median(cost.events for cost, _ in self._inside)
        extra_us = _median(cost.duration_us for cost, _ in self._inside) - _median(self._outside)
        return min(self.MOST, max(self.LEAST_EVENT_US * events, extra_us) / prior_us)

    @property
    def total_us(self) -> float:
        """Overhead so far."""
        return self._charge * (self._hooks_us + self._correction * self._prior_us)

    @property
    def searched_us(self) -> float:
        """What searches for holders took of it."""
        return self._charge * self._searched_us

    @property
    def step_us(self) -> float:
        """Median duration of a step without what recording it took; 0 before there was one."""
        if self._outside:
            return _median(self._outside)
        if not self._inside:
            return 0.0
        return _median(
            max(0.0, cost.duration_us - self._correction * cost.prior_us)
            for cost, _ in self._inside
        )

    def window_us(self, steps: int) -> float:
        """What a window of so many steps will probably cost; 0 before there was one."""
        if not self._inside:
            return 0.0
        step_us = _median(
            spent_us + self._correction * cost.prior_us for cost, spent_us in self._inside
        )
        return self._charge * (2 * self._edge_us + steps * step_us)


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


def _median(values: Iterable[float]) -> float:
    """The middle of some values, of which there is one at least, or the mean of the middle two.

    `statistics` has the same, and takes two milliseconds of a recording's start to be imported.
    """
    in_order = sorted(values)
    half = len(in_order) // 2
    return in_order[half] if len(in_order) % 2 else (in_order[half - 1] + in_order[half]) / 2


def _rises(values: Sequence[int], limits: Climb) -> bool:
    third = len(values) // 3
    first, middle, last = (_median(values[i : i + third]) for i in (0, third, 2 * third))
    if not first < middle < last:
        return False
    rise = max(limits.LEAST_RISE, limits.LEAST_SHARE * first)
    return last - first >= rise and _kendall_tau(values) >= limits.LEAST_TAU


def _kendall_tau(values: Sequence[int]) -> float:
    """Pairs in rising order less those in falling order, over all pairs (tau-a)."""
    score = sum((b > a) - (b < a) for i, a in enumerate(values) for b in values[i + 1 :])
    return 2 * score / (len(values) * (len(values) - 1))


class Quota:
    """A limit of the whole file that windows share: each may take half of what is left."""

    def __init__(self, most: int, first_share: float = 0.5) -> None:
        """``most`` of it in all windows, ``first_share`` of that in the first."""
        self._remaining = most
        self._in_window = 0
        self._share = first_share

    @property
    def room(self) -> int:
        """What the open window may still take."""
        return int(self._remaining * self._share) - self._in_window

    def take(self, amount: int) -> None:
        """The open window takes so much more."""
        self._in_window += amount

    def window_ended(self) -> None:
        """What it took is gone."""
        self._remaining -= self._in_window
        self._in_window = 0
        self._share = 0.5


class WindowSchedule:
    """Whether a window should be open, asked at every step's end, and by time in between.

    Recording begins in a window. It stays open while all recording so far cost less than the
    start's share of the allowance (or of the budget, where that is more). Half of that is kept for
    the first steps that train: what runs before them (an evaluation, ``generate()``) ends the
    window when it has used up the other half, or its part of the events, bytes or tables, and it
    opens again, with half of what is left of them, when training begins. A program
    whose steps train nothing for a while gets half of the rest, and later once more: so what grows
    in a server or a simulator shows in windows that lie apart, and enough is left to train.

    Later windows are a few steps long and open when the budget has room for them, at steps that are
    multiples of a power of two: so the ranks of a job, which all wait for the slowest, open them
    together without a word, and two runs of one program can be compared. The power grows with the
    time gone by. They open at once, out of the rest of the allowance, when memory begins to climb,
    and in a job of one process where it runs code that no window has recorded. In a job of several
    ranks only the first such window after a regular one does: the others wait for a step at which a
    regular one may open. Any window ends where a limit is met, be it in the middle of a step.
    """

    START_SHARE = 0.8
    """Of the allowance; the rest is kept for climbs."""
    FIRST_BYTES = 0.75
    """Of all bytes of the file, in the first window."""
    RESERVE = 0.5
    """Of the start's share, for the first steps that train."""
    LEAST_RESERVE = 0.25
    """The same where searches for holders have used up the rest, as in a large heap."""
    LAPSES = 2
    """Times that half of what is kept for training goes to steps that train nothing."""
    _QUOTAS = frozenset((End.EVENTS, End.BYTES, End.TABLES))
    """Ends of a window of which nothing comes back as time goes by."""
    PATIENCE = 4
    """Times as long as before the first, it is waited for training before the second."""
    TRAINED = 3
    """Such steps, recorded whole: from the third on a survivor shows."""
    EVALUATED = 8
    """So many guessed steps after such that trained count as one step of a window."""
    GAP_SHARE = 0.25
    """Of the time gone by, between two windows: so they come ever more rarely."""
    CLIMB_STEPS = 16
    """In a job of several ranks windows for a climb open at multiples of it, or of a power of two
    that is more."""
    CODE_SHARE = 0.5
    """Of what is left, for a window of code that was not recorded; an evaluation's memory may grow
    to its end."""
    LEAST_CODE_US = 50_000
    """Some thousand operators."""
    UNSTEPPED_US = 1_000_000
    """A window in which no step ends is so long, or as long as its steps should take."""

    def __init__(self, policy: Policy, now_us: int) -> None:
        """The first window opens at ``now_us``."""
        self.events = Quota(policy.max_events)
        self.bytes = Quota(policy.max_bytes, self.FIRST_BYTES)
        self.rows = Quota(policy.max_rows)
        self.reason: Reason | None = Reason.START if self._has_room() else None
        """Why a window is open; None when none is."""
        self.opened_for = self.reason
        """Why the last one opened."""
        self.end: End | None = None
        """Why the last window ended; None while one is open."""
        self._start_end: End | None = None
        """Why that of the start ended."""
        self._policy = policy
        self._began_us = now_us
        self._opened_us = self._closed_us = self._stepped_us = now_us
        self._rate = 0.0
        self._total_at_opening_us = 0.0
        self._step = self._steps_in_window = self._untrained_in_window = self._training_steps = 0
        self._has_trained = False
        self._lapses = 0
        self._keeps_rest = self._resumed_to_train = False
        self._most_for_code_us = 0.0
        """What all recording may have taken when a window of new code ends."""
        self._kept_us = 0.0
        """Of the start's share, what was kept for training when its window ended."""
        self._is_whole = True
        self._is_by_time = False
        self._climbs = {Reason.GROWTH: Climb(), Reason.FRAGMENTATION: Climb()}
        self._climb: Reason | None = None
        self._climbs_wait = False
        """Until the next regular window: when the rest of the allowance is nearly used up, ranks
        whose costs differ a little would open theirs at different steps."""

    @property
    def is_open(self) -> bool:
        """Whether every event should be recorded now."""
        return self.reason is not None

    @property
    def is_reserved(self) -> bool:
        """Whether the window of the start waits for the program to train."""
        return self.reason is None and self._keeps_rest

    @property
    def allowance_us(self) -> int:
        """Time that recording may take in any case."""
        return self._policy.allowance_us

    def add_allowance(self, duration_us: float) -> None:
        """Allow the first window as much as if so much had not been used before it began."""
        allowance_us = self._policy.allowance_us + round(duration_us / self.START_SHARE)
        self._policy = msgspec.structs.replace(self._policy, allowance_us=allowance_us)
        self._total_at_opening_us += duration_us

    def events_recorded(self, count: int) -> None:
        """Events that were drained from the open window."""
        self.events.take(count)

    def step_ended(
        self,
        now_us: int,
        meter: OverheadMeter,
        allocated: int = -1,
        idle: int = -1,
        *,
        step: int | None = None,
        trains: bool = True,
    ) -> bool:
        """Whether a window should be open from now on, after ``step`` (the next one, if not given).

        ``allocated`` are bytes of tensors, ``idle`` reserved bytes that no tensor uses; -1 where
        they are not known. ``trains``: an optimizer or an explicit mark ended the step, no call.
        """
        before, self._step = self._step, self._step + 1 if step is None else step + 1
        self._stepped_us = now_us
        if self._policy.ranks <= 1 or self._has_crossed(before, self._sample_grid(now_us)):
            self._climb = self._climbing(allocated, idle) or self._climb
        if self.reason is None:
            if self.is_reserved and trains and self._resume(now_us, meter, whole=True):
                self._resumed_to_train = True
            elif self.is_reserved and not trains and self._may_lapse(before, now_us):
                self._lapses += 1
                self._resume(now_us, meter, whole=True)
            else:
                self._open(self._why_open(before, now_us, meter), now_us, meter)
        else:
            is_kept = self._keeps_rest and self._start_end is End.RESERVE
            if self.reason is Reason.CODE and trains and is_kept:
                self.reason = Reason.START  # it is what the rest was kept for
                self._resumed_to_train = True
            self._has_trained |= trains
            self._untrained_in_window += self._has_trained and not trains
            # The batches of an evaluation within the training are no steps of its own.
            if trains or self._counts_untrained():
                self._steps_in_window += 1
            self._training_steps += trains and self._is_whole
            self._is_whole = True
            ahead_us = self._ahead_us(before, meter)
            self._close_if(self._why_close(now_us, meter, ahead_us), now_us, meter)
        return self.is_open

    def time_passed(self, now_us: int, meter: OverheadMeter) -> bool:
        """The same in the middle of a step; one that lasts long may have to do without its end."""
        if self.reason is not None:
            self._close_if(self._why_close(now_us, meter), now_us, meter)
        elif self._is_unstepped(now_us, meter):
            self._open(self._why_open_by_time(now_us, meter), now_us, meter)
            self._is_by_time, self._is_whole = self.is_open, False
        return self.is_open

    def may_open_for_code(self, now_us: int, meter: OverheadMeter) -> bool:
        """Whether to look, between two windows, for code of the program's that was not recorded.

        Ranks of a job would open such windows apart. Of what is kept for training a part may go to
        it: it may train by an optimizer of the program's own, which nobody sees begin.
        """
        if self.reason is not None or self._policy.ranks > 1:
            return False
        if self.is_reserved and self._start_end is not End.RESERVE:
            return False  # there is little room, however much time is left
        left_us = self._left_for_code_us(now_us, meter)
        return self._has_room() and self.CODE_SHARE * left_us >= self.LEAST_CODE_US

    def open_for_code(self, now_us: int, meter: OverheadMeter) -> None:
        """Open a window for it."""
        left_us = self._left_for_code_us(now_us, meter)
        self._open(Reason.CODE, now_us, meter)
        self._is_whole = False
        self._most_for_code_us = meter.total_us + self.CODE_SHARE * left_us

    def _left_for_code_us(self, now_us: int, meter: OverheadMeter) -> float:
        if not self.is_reserved:
            return self._spendable_us(now_us, meter) - meter.total_us
        allowed_us = self._policy.allowed_us(now_us - self._began_us)
        # All such windows together take no more than that share of what is kept.
        return self.START_SHARE * allowed_us - meter.total_us - self.CODE_SHARE * self._kept_us

    def training_begins(self, now_us: int, meter: OverheadMeter) -> bool:
        """The same when an optimizer is about to step."""
        if self.is_reserved:
            self._resumed_to_train = self._resume(now_us, meter, whole=False)
        return self.is_open

    def window_lost(self, now_us: int, meter: OverheadMeter) -> bool:
        """A source has lost events: whether another window should take over at once."""
        reason = self.reason
        self._close_if(End.GAP, now_us, meter)
        self._open(reason if self._has_room() else None, now_us, meter)
        return self.is_open

    def closes_with(self, end: End, now_us: int, meter: OverheadMeter) -> None:
        """The window is ended from outside."""
        self._close_if(end, now_us, meter)

    def grid(self, now_us: int) -> int:
        """Regular windows begin at steps that are multiples of this power of two."""
        elapsed_us = max(1, now_us - self._began_us)
        return _power_of_two(self._gap_us(elapsed_us) * self._step / elapsed_us)

    def look_grid(self, now_us: int) -> int:
        """Multiples of this power of two are steps after which a window may open: look there.

        However short steps are: else ranks that look at others would open theirs apart.
        """
        grid = self.grid(now_us)
        return grid if self._policy.ranks <= 1 else min(grid, self._sample_grid(now_us))

    def _sample_grid(self, now_us: int) -> int:
        """Ranks judge whether bytes climb by the same steps, however often they look."""
        return max(1, self._climb_grid(now_us) // self.CLIMB_STEPS)

    def _climb_grid(self, now_us: int) -> int:
        elapsed_us = max(1, now_us - self._began_us)
        steps = self._policy.first_gap_us * self._step / elapsed_us / 4
        return _power_of_two(max(steps, self.CLIMB_STEPS))

    def _gap_us(self, elapsed_us: int) -> float:
        """Least time between two windows, of the time gone by: the same for all ranks of a job."""
        gap_us = max(elapsed_us * self.GAP_SHARE, self._policy.first_gap_us)
        return min(gap_us, self._policy.longest_gap_us)

    def _climbing(self, allocated: int, idle: int) -> Reason | None:
        cause = None
        for reason, value in ((Reason.FRAGMENTATION, idle), (Reason.GROWTH, allocated)):
            if value >= 0 and self._climbs[reason].add(value):
                cause = reason
        return cause

    def _why_open(self, before: int, now_us: int, meter: OverheadMeter) -> Reason | None:
        if not self._has_room():
            return None
        expected_us = meter.total_us + meter.window_us(self._policy.window_steps)
        elapsed_us = now_us - self._began_us
        climb = self._climb
        if climb is not None and self._may_climb(before, now_us):
            self._climb = None
            self._climbs_wait = True
            if expected_us <= self._spendable_us(now_us, meter):
                return climb
        if now_us - self._closed_us < self._policy.first_gap_us:
            return None
        if not self._has_crossed(before, self.grid(now_us)):
            return None
        return Reason.REGULAR if expected_us <= self._policy.budget * elapsed_us else None

    def _may_climb(self, before: int, now_us: int) -> bool:
        if self._policy.ranks <= 1:
            return True
        if self._climbs_wait:
            return self._has_crossed(before, self.grid(now_us))
        return self._has_crossed(before, self._climb_grid(now_us))

    def _may_lapse(self, before: int, now_us: int) -> bool:
        """Whether steps that train nothing have come for so long that none that trains may come."""
        if self._lapses == self.LAPSES or self._has_trained:
            return False
        waited_us = now_us - self._closed_us
        return (
            waited_us >= self._policy.first_gap_us * self.PATIENCE** self._lapses
            and self._may_climb(before, now_us)
        )

    def _has_crossed(self, before: int, grid: int) -> bool:
        """Whether a multiple was among the steps since the last look; it may cover several."""
        return self._step // grid != before // grid

    def _is_unstepped(self, now_us: int, meter: OverheadMeter) -> bool:
        """Whether no step has ended for so long that none is to be waited for."""
        patience_us = max(self._policy.first_gap_us, 4 * meter.step_us)
        return now_us - self._stepped_us >= patience_us

    def _why_open_by_time(self, now_us: int, meter: OverheadMeter) -> Reason | None:
        elapsed_us = now_us - self._began_us
        if not self._has_room() or now_us - self._closed_us < self._gap_us(elapsed_us):
            return None
        expected_us = meter.total_us + self._rate * self._unstepped_us(meter)
        return Reason.REGULAR if expected_us <= self._policy.budget * elapsed_us else None

    def _unstepped_us(self, meter: OverheadMeter) -> float:
        return max(self.UNSTEPPED_US, 2 * self._policy.window_steps * meter.step_us)

    def _counts_untrained(self) -> bool:
        """Whether the step that ended, which trained nothing, is one of the window's."""
        if not self._has_trained:
            return True
        return self.reason is not Reason.CODE and self._untrained_in_window % self.EVALUATED == 0

    def _ahead_us(self, before: int, meter: OverheadMeter) -> float:
        """What the first window will cost until it may end the next time.

        In a job of several ranks that is at a multiple of a power of two, a quarter to a half of
        its steps: each rank's end holds up all the others, so they should come together.
        """
        if self._policy.ranks <= 1 or self.reason is not Reason.START:
            return 0.0
        grid = _power_of_two(self._steps_in_window / 4)
        if not self._has_crossed(before, grid):
            return -math.inf
        cost_us = meter.total_us - self._total_at_opening_us
        return grid * cost_us / self._steps_in_window

    def _why_close(self, now_us: int, meter: OverheadMeter, ahead_us: float = 0.0) -> End | None:
        for quota, end in (
            (self.events, End.EVENTS),
            (self.bytes, End.BYTES),
            (self.rows, End.TABLES),
        ):
            if quota.room <= 0:
                return end
        allowed_us = self._policy.allowed_us(now_us - self._began_us)
        if self.reason is Reason.START:
            share_us = self.START_SHARE * allowed_us
            return self._why_start_ends(share_us, meter.total_us + ahead_us, meter.searched_us)
        if self._steps_in_window >= self._policy.window_steps:
            return End.STEPS
        if self.reason is Reason.CODE and meter.total_us > self._most_for_code_us:
            return End.STEPS
        if self._is_by_time and now_us - self._opened_us >= self._unstepped_us(meter):
            return End.STEPS
        return End.ALLOWANCE if meter.total_us > self._spendable_us(now_us, meter) else None

    def _spendable_us(self, now_us: int, meter: OverheadMeter) -> float:
        """What windows may take that are not the start's: not what is kept for training.

        Where more than the start's share was used up anyway, nothing is left of that.
        """
        allowed_us = self._policy.allowed_us(now_us - self._began_us)
        is_left = self._keeps_rest and meter.total_us <= self.START_SHARE * allowed_us
        return allowed_us - (self._kept_us if is_left else 0.0)

    def _why_start_ends(self, share_us: float, total_us: float, searched_us: float) -> End | None:
        if total_us > share_us:
            return End.ALLOWANCE
        left_us = share_us - self._total_at_opening_us
        # What was searched for before the training is not searched for in it: it has a limit.
        kept_us = max(self.RESERVE * left_us - searched_us, self.LEAST_RESERVE * left_us)
        if self._training_steps < self.TRAINED and total_us > share_us - kept_us:
            return End.RESERVE
        return None

    def _resume(self, now_us: int, meter: OverheadMeter, *, whole: bool) -> bool:
        """Open the window of the start again; whether that could be done."""
        allowed_us = self._policy.allowed_us(now_us - self._began_us)
        if self._has_room() and meter.total_us <= self.START_SHARE * allowed_us:
            self._open(Reason.START, now_us, meter)
            self._is_whole = whole
        return self.is_open

    def _has_room(self) -> bool:
        return all(quota.room > 0 for quota in (self.events, self.bytes, self.rows))

    def _open(self, reason: Reason | None, now_us: int, meter: OverheadMeter) -> None:
        if reason is None:
            return
        self.reason = self.opened_for = reason
        self.end = None
        self._climbs_wait = self._climbs_wait and reason is not Reason.REGULAR
        self._opened_us, self._total_at_opening_us = now_us, meter.total_us
        self._steps_in_window, self._is_whole, self._is_by_time = 0, True, False
        self._untrained_in_window = 0

    def _close_if(self, end: End | None, now_us: int, meter: OverheadMeter) -> None:
        if end is None or self.reason is None:
            return
        is_start = self.reason is Reason.START
        self.reason, self.end = None, end
        self._closed_us = now_us
        took_us = max(1, now_us - self._opened_us)
        self._rate = max(0.0, meter.total_us - self._total_at_opening_us) / took_us
        for quota in (self.events, self.bytes, self.rows):
            quota.window_ended()
        if is_start:  # a window for a climb, of an evaluation say, leaves what is kept as it is
            is_untrained = self._training_steps < self.TRAINED
            # A step that takes a quota's half by itself gets a half once more, not all of it.
            waits = end is End.RESERVE or (end in self._QUOTAS and not self._resumed_to_train)
            self._keeps_rest = is_untrained and waits
            self._start_end = end
            share_us = self.START_SHARE * self._policy.allowed_us(now_us - self._began_us)
            self._kept_us = max(0.0, share_us - meter.total_us)
        self._keeps_rest = self._keeps_rest and self._has_room()


def _power_of_two(least: float) -> int:
    """The smallest that is not less."""
    return 1 << max(0, (int(-(-least // 1)) - 1).bit_length())
