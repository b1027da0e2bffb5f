"""The window schedule under a clock that the tests turn."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memprof.record.window_schedule import (
    Climb,
    End,
    OverheadMeter,
    Policy,
    Quota,
    Reason,
    StepCost,
    WindowSchedule,
)

SECOND = 1_000_000


def policy_of(**options):
    """With an allowance of five seconds where none is given."""
    return Policy(**{"allowance_us": 5 * SECOND, **options})


LEVEL = 50 << 20


class Job:
    """A training job whose recorded events cost what is said, seen by a schedule."""

    def __init__(self, policy: Policy, *, step_us: int, events: int, event_us: float):
        self.policy, self.step_us, self.events, self.event_us = policy, step_us, events, event_us
        self.now_us = 0
        self.cost_us = 0.0
        self.schedule = WindowSchedule(policy, 0)
        self.meter = OverheadMeter()
        self.windows: list[tuple[Reason, int, int]] = []
        self._opened = (Reason.START, 0)
        self.worst = 0.0

    def run(self, steps: int, allocated=lambda step: LEVEL, idle=lambda step: 0) -> None:
        for step in range(steps):
            self.one_step(allocated(step), idle(step))

    def one_step(self, allocated: int = LEVEL, idle: int = 0) -> None:
        is_open = self.schedule.is_open
        events = self.events if is_open else 0
        extra = round(events * self.event_us)
        self.now_us += self.step_us + extra
        self.cost_us += extra
        prior = events * 30.0
        self.meter.step(StepCost(self.step_us + extra, events, is_open, prior))
        self.schedule.events_recorded(events)
        reason = self.schedule.reason
        now_open = self.schedule.step_ended(self.now_us, self.meter, allocated, idle)
        if is_open and not now_open:
            self.windows.append((reason, self._opened[1], self.now_us))
        elif now_open and not is_open:
            self._opened = (self.schedule.reason, self.now_us)
        self.worst = max(self.worst, self.cost_us - self.policy.allowed_us(self.now_us))

    @property
    def share(self) -> float:
        return self.cost_us / self.now_us


def test_recording_begins_in_a_window():
    schedule = WindowSchedule(policy_of(), 0)
    assert schedule.is_open
    assert schedule.reason is Reason.START


def test_a_short_run_is_recorded_whole():
    job = Job(policy_of(), step_us=20_000, events=500, event_us=20)
    job.run(200)
    assert job.schedule.is_open
    assert job.windows == []


def test_the_first_window_ends_when_the_allowance_is_nearly_used_up():
    job = Job(policy_of(), step_us=20_000, events=500, event_us=30)
    job.run(300)
    assert [reason for reason, _, _ in job.windows] == [Reason.START]
    assert job.cost_us == pytest.approx(0.8 * 5 * SECOND, rel=0.01)


def test_a_run_whose_recording_costs_less_than_the_budget_is_recorded_whole_until_events_run_out():
    job = Job(policy_of(), step_us=1_000_000, events=100, event_us=30)  # 0.3 % of the time
    job.run(9_999)
    assert job.schedule.is_open
    job.run(1)
    assert job.schedule.end is End.EVENTS
    assert job.windows == [(Reason.START, 0, 10_000 * 1_003_000)]


def test_a_long_job_keeps_to_its_budget():
    job = Job(policy_of(), step_us=100_000, events=2_000, event_us=25)
    job.run(200_000)
    assert job.now_us > 5 * 3600 * SECOND
    assert job.share < 0.01
    assert job.worst <= 0.05 * job.policy.allowance_us


def test_later_windows_come_ever_more_rarely():
    job = Job(policy_of(), step_us=100_000, events=200, event_us=20)
    job.meter.hook(4.5 * SECOND)  # the first window ends soon
    job.run(300_000)
    starts = [start for reason, start, _ in job.windows if reason is Reason.REGULAR]
    gaps = [b - a for a, b in pairwise(starts)]
    assert len(starts) >= 5
    assert all(later >= earlier for earlier, later in pairwise(gaps[1:]))


def test_a_regular_window_has_the_steps_that_were_asked_for():
    job = Job(policy_of(window_steps=7), step_us=100_000, events=2_000, event_us=25)
    job.run(60_000)
    start, end = next((a, b) for reason, a, b in job.windows if reason is Reason.REGULAR)
    assert end - start == 7 * (100_000 + 2_000 * 25)


def after_the_first_window(**options) -> Job:
    job = Job(policy_of(**options), step_us=20_000, events=500, event_us=30)
    while job.schedule.is_open:
        job.one_step()
    return job


def test_growth_opens_a_window_at_once():
    job = after_the_first_window()
    job.run(40, allocated=lambda step: LEVEL + step * (1 << 20))
    assert job.windows[-1][0] is Reason.GROWTH or job.schedule.reason is Reason.GROWTH


def test_an_evaluation_within_the_training_does_not_use_up_the_steps_of_a_window():
    job = after_the_first_window()
    for step in range(30):
        job.one_step(LEVEL + step * (1 << 20))
        if job.schedule.is_open:
            break
    ends = [
        job.schedule.step_ended(job.now_us, job.meter, LEVEL, 0, trains=False) for _ in range(40)
    ]
    assert ends == [True] * 39 + [False]  # eight of them are one of five


def test_fragmentation_opens_a_window_at_once():
    job = after_the_first_window()
    job.run(40, idle=lambda step: step * (4 << 20))
    assert job.windows[-1][0] is Reason.FRAGMENTATION or (
        job.schedule.reason is Reason.FRAGMENTATION
    )


def test_growth_that_never_ends_keeps_to_the_budget_too():
    job = Job(policy_of(), step_us=100_000, events=2_000, event_us=25)
    job.run(100_000, allocated=lambda step: LEVEL + step * (1 << 20))
    assert any(reason is Reason.GROWTH for reason, _, _ in job.windows)
    assert job.share < 0.011


def test_what_the_beginning_took_comes_on_top_of_the_allowance():
    """As much is recorded as without it."""
    plain, late = (Job(policy_of(), step_us=100_000, events=1000, event_us=10.0) for _ in range(2))
    late.meter.hook(4 * SECOND)
    late.schedule.add_allowance(4 * SECOND)
    for job in (plain, late):
        job.run(2000)
    assert late.windows[0] == plain.windows[0]
    assert plain.windows[0][2] > 10 * SECOND


def test_a_budget_of_nothing_leaves_the_allowance_only():
    job = Job(policy_of(budget=0.0), step_us=20_000, events=500, event_us=30)
    job.run(50_000, allocated=lambda step: LEVEL + step * (1 << 20))
    assert job.cost_us <= 1.01 * job.policy.allowance_us


def test_the_whole_file_never_holds_more_events_than_allowed():
    job = Job(policy_of(budget=1.0, max_events=100_000), step_us=1_000, events=1_000, event_us=1)
    recorded = 0
    for _ in range(20_000):
        recorded += job.events if job.schedule.is_open else 0
        job.one_step()
    assert 50_000 <= recorded <= 100_000 + job.events


@pytest.mark.parametrize(
    "series",
    [
        pytest.param(lambda i: LEVEL, id="level"),
        pytest.param(lambda i: LEVEL + (i % 4) * (8 << 20), id="gradient-accumulation"),
        pytest.param(lambda i: LEVEL + (1 << 30) * (i == 30), id="one-spike"),
        pytest.param(lambda i: LEVEL - i * (1 << 20), id="falling"),
        pytest.param(lambda i: LEVEL + (i >= 20) * (64 << 20), id="one-jump"),
        pytest.param(lambda i: LEVEL + i * 100, id="too-little"),
    ],
)
def test_what_does_not_climb_is_left_alone(series):
    climb = Climb()
    assert not any(climb.add(series(i)) for i in range(200))


def test_a_noisy_climb_is_seen_within_thirty_steps():
    noise = random.Random(0)
    climb = Climb()
    seen = [climb.add(LEVEL + i * (1 << 20) + noise.randrange(1 << 21)) for i in range(30)]
    assert sum(seen) == 1


def test_after_an_alarm_the_series_starts_afresh():
    climb = Climb()
    seen = [climb.add(LEVEL + i * (1 << 20)) for i in range(3 * Climb.LENGTH)]
    assert [i for i, alarm in enumerate(seen) if alarm] == [23, 47, 71]


def test_an_event_costs_its_prior_until_steps_of_both_kinds_were_seen():
    meter = OverheadMeter()
    for _ in range(20):
        meter.step(StepCost(10_000, 100, in_window=True, prior_us=3_000))
    assert meter.event_us == 30
    assert meter.total_us == 20 * 3_000


def test_an_event_costs_what_it_made_steps_longer():
    meter = OverheadMeter()
    for i in range(40):
        in_window = i < 20
        events = 100 if in_window else 0
        meter.step(StepCost(12_000 if in_window else 10_000, events, in_window, 30.0 * events))
    assert meter.event_us == 20
    meter.hook(500)
    assert meter.total_us == 20 * 100 * 20 + 500


def test_one_slow_step_does_not_change_what_an_event_costs():
    meter = OverheadMeter()
    for i in range(40):
        in_window = i < 20
        duration = 9_000_000 if i in (7, 30) else 12_000 if in_window else 10_000
        events = 100 if in_window else 0
        meter.step(StepCost(duration, events, in_window, 30.0 * events))
    assert meter.event_us == 20


@settings(max_examples=40)
@given(
    st.integers(1_000, 2_000_000),
    st.integers(0, 5_000),
    st.floats(0.5, 30),
    st.floats(0.001, 0.2),
    st.integers(0, 2**32),
)
def test_no_job_costs_more_than_its_budget_or_its_allowance(
    step_us, events, event_us, budget, seed
):
    noise = random.Random(seed)
    job = Job(policy_of(budget=budget), step_us=step_us, events=events, event_us=event_us)
    for step in range(600):
        job.one_step(LEVEL + step * noise.randrange(1 << 20), noise.randrange(1 << 28))
    # An overrun is at most what one step of a window costs: nothing stops in the middle of a step.
    assert job.worst <= 2 * events * event_us + 0.05 * job.policy.allowance_us


# In the middle of a step, and by time.


def test_the_window_of_the_start_keeps_half_of_its_share_for_training():
    schedule, meter = WindowSchedule(policy_of(), 0), OverheadMeter()
    meter.hook(1.9 * SECOND)
    assert schedule.time_passed(2 * SECOND, meter)
    meter.hook(0.2 * SECOND)  # of a call of generate() before the first step
    assert not schedule.time_passed(3 * SECOND, meter)
    assert schedule.end is End.RESERVE
    assert schedule.training_begins(60 * SECOND, meter)
    assert schedule.reason is Reason.START


def test_searches_before_the_training_leave_a_quarter_of_the_share_for_it():
    schedule, meter = WindowSchedule(policy_of(), 0), OverheadMeter()
    meter.hook(1.5 * SECOND)
    meter.search(1.5 * SECOND)  # in a large heap, which is not searched as long again
    meter.hook(1.4 * SECOND)
    assert schedule.time_passed(2 * SECOND, meter)
    meter.hook(0.2 * SECOND)
    assert not schedule.time_passed(3 * SECOND, meter)
    assert (schedule.end, schedule.is_reserved) == (End.RESERVE, True)
    assert schedule.training_begins(4 * SECOND, meter)


def test_a_long_evaluation_after_the_first_step_leaves_some_for_the_next():
    schedule, meter = WindowSchedule(policy_of(), 0), OverheadMeter()
    assert schedule.step_ended(1 * SECOND, meter, step=0)
    meter.hook(2.1 * SECOND)
    assert not schedule.time_passed(9 * SECOND, meter)
    assert schedule.step_ended(10 * SECOND, meter, step=1)
    for step in range(2, 4):
        meter.hook(0.3 * SECOND)
        assert schedule.step_ended((9 + step) * SECOND, meter, step=step)
    meter.hook(1.0 * SECOND)  # three steps were recorded whole: the rest may be used
    assert schedule.time_passed(14 * SECOND, meter)
    meter.hook(0.4 * SECOND)
    assert not schedule.time_passed(15 * SECOND, meter)
    assert schedule.end is End.ALLOWANCE


def test_calls_that_train_nothing_do_not_take_what_is_kept():
    schedule, meter = WindowSchedule(policy_of(), 0), OverheadMeter()
    for step in range(10):
        assert schedule.step_ended(step * SECOND, meter, step=step, trains=False)
    meter.hook(2.1 * SECOND)
    assert not schedule.step_ended(10 * SECOND, meter, step=10, trains=False)
    assert schedule.is_reserved
    assert not schedule.step_ended(11 * SECOND, meter, step=11, trains=False)
    assert schedule.step_ended(12 * SECOND, meter, step=12)


def test_a_window_for_a_climb_leaves_what_is_kept_for_training():
    """An evaluation before the training collects its results: bytes climb."""
    schedule, meter = WindowSchedule(policy_of(), 0), OverheadMeter()
    meter.hook(2.1 * SECOND)
    assert not schedule.step_ended(1 * SECOND, meter, LEVEL, step=0, trains=False)
    assert schedule.is_reserved
    for step in range(1, 40):
        schedule.step_ended(1 * SECOND + step, meter, LEVEL * (step + 1), step=step, trains=False)
        if schedule.is_open:
            break
    assert schedule.reason is Reason.GROWTH
    schedule.closes_with(End.STEPS, 2 * SECOND, meter)
    assert schedule.is_reserved
    assert schedule.training_begins(60 * SECOND, meter)
    assert schedule.reason is Reason.START


def test_climbs_take_nothing_of_what_is_kept_for_training():
    """Of 5 s 2.1 were used, and 1.9 are kept: a second is left."""
    schedule, meter = WindowSchedule(policy_of(), 0), OverheadMeter()
    meter.hook(2.1 * SECOND)
    assert not schedule.step_ended(1 * SECOND, meter, LEVEL, step=0, trains=False)
    for step in range(1, 40):
        schedule.step_ended(1 * SECOND + step, meter, LEVEL * (step + 1), step=step, trains=False)
        if schedule.is_open:
            break
    assert schedule.reason is Reason.GROWTH
    meter.hook(0.9 * SECOND)
    assert schedule.time_passed(2 * SECOND, meter)
    meter.hook(0.2 * SECOND)
    assert not schedule.time_passed(2 * SECOND, meter)
    assert schedule.end is End.ALLOWANCE
    assert schedule.training_begins(60 * SECOND, meter)
    assert schedule.reason is Reason.START


def test_code_that_was_not_recorded_opens_a_window_with_half_of_what_is_left():
    schedule, meter = WindowSchedule(policy_of(), 0), OverheadMeter()
    assert not schedule.may_open_for_code(0, meter)  # everything is recorded
    for step in range(4):
        schedule.step_ended(step * SECOND, meter, step=step)
    meter.hook(4.2 * SECOND)
    assert not schedule.step_ended(5 * SECOND, meter, step=4)
    assert schedule.may_open_for_code(6 * SECOND, meter)
    schedule.open_for_code(6 * SECOND, meter)
    assert schedule.reason is Reason.CODE
    for step in range(5, 60):  # batches of an evaluation
        assert schedule.step_ended(6 * SECOND + step, meter, step=step, trains=False)
    meter.hook(0.3 * SECOND)
    assert schedule.time_passed(50 * SECOND, meter)
    meter.hook(0.2 * SECOND)
    assert not schedule.time_passed(51 * SECOND, meter)
    assert schedule.end is End.STEPS
    meter.hook(0.4 * SECOND)
    assert not schedule.may_open_for_code(52 * SECOND, meter)


def test_a_window_of_new_code_ends_with_five_steps_that_train():
    schedule, meter = WindowSchedule(policy_of(), 0), OverheadMeter()
    schedule.step_ended(1, meter, step=0)
    schedule.closes_with(End.EVENTS, 2, meter)
    schedule.open_for_code(3, meter)
    assert [schedule.step_ended(4 + i, meter, step=1 + i) for i in range(5)] == [True] * 4 + [False]
    assert schedule.end is End.STEPS


def test_what_is_kept_for_training_goes_to_new_code_that_trains():
    """By an optimizer of its own, perhaps: then only backward passes tell."""
    schedule, meter = WindowSchedule(policy_of(), 0), OverheadMeter()
    meter.hook(2.1 * SECOND)
    assert not schedule.step_ended(1 * SECOND, meter, step=0, trains=False)
    assert schedule.is_reserved
    assert schedule.may_open_for_code(2 * SECOND, meter)
    schedule.open_for_code(2 * SECOND, meter)
    assert schedule.opened_for is Reason.CODE
    for step in range(1, 40):
        assert schedule.step_ended((2 + step) * SECOND, meter, step=step)
    assert schedule.reason is Reason.START


def test_new_code_that_trains_nothing_leaves_most_of_what_is_kept_for_training():
    schedule, meter = WindowSchedule(policy_of(), 0), OverheadMeter()
    meter.hook(2.1 * SECOND)
    schedule.step_ended(1 * SECOND, meter, step=0, trains=False)
    schedule.open_for_code(2 * SECOND, meter)
    steps = [
        schedule.step_ended((3 + step) * SECOND, meter, step=1 + step, trains=False)
        for step in range(5)
    ]
    assert steps == [True] * 4 + [False]
    assert schedule.is_reserved
    assert schedule.training_begins(9 * SECOND, meter)


def test_windows_of_new_code_leave_half_of_what_is_kept_for_training_however_many_open():
    schedule, meter = WindowSchedule(policy_of(), 0), OverheadMeter()
    meter.hook(2.1 * SECOND)
    schedule.step_ended(1 * SECOND, meter, step=0, trains=False)
    began_us, now_us = meter.total_us, 2 * SECOND
    while schedule.may_open_for_code(now_us, meter):
        schedule.open_for_code(now_us, meter)
        while schedule.is_open:
            meter.hook(0.01 * SECOND)
            now_us += SECOND // 100
            schedule.time_passed(now_us, meter)
    kept_us = schedule.START_SHARE * schedule.allowance_us - began_us
    spent_us = meter.total_us - began_us
    assert 0.8 * kept_us / 2 < spent_us < 1.05 * kept_us / 2
    assert schedule.training_begins(now_us, meter)


def test_what_a_full_quota_keeps_for_training_opens_no_window_of_new_code():
    schedule, meter = WindowSchedule(policy_of(), 0), OverheadMeter()
    schedule.closes_with(End.EVENTS, 2, meter)
    assert schedule.is_reserved
    assert not schedule.may_open_for_code(2 * SECOND, meter)


def test_ranks_of_a_job_open_no_window_of_new_code():
    schedule, meter = WindowSchedule(policy_of(ranks=2), 0), OverheadMeter()
    schedule.step_ended(1, meter, step=0)
    schedule.closes_with(End.EVENTS, 2, meter)
    assert not schedule.may_open_for_code(3, meter)


def test_what_is_kept_for_training_and_used_up_otherwise_stops_no_other_window():
    schedule, meter = WindowSchedule(policy_of(), 0), OverheadMeter()
    meter.hook(2.1 * SECOND)
    assert not schedule.step_ended(1 * SECOND, meter, LEVEL, step=0, trains=False)
    assert schedule.is_reserved
    meter.hook(2.2 * SECOND)  # searches, say: more than the share of the start
    for step in range(1, 40):
        schedule.step_ended(1 * SECOND + step, meter, LEVEL * (step + 1), step=step)
        if schedule.is_open:
            break
    assert schedule.reason is Reason.GROWTH


def test_steps_that_train_nothing_get_half_of_what_is_kept_after_a_while_and_once_more():
    schedule, meter = WindowSchedule(policy_of(), 0), OverheadMeter()
    windows: list[list[int]] = [[]]
    for second in range(200):
        if schedule.is_open:
            meter.hook(0.1 * SECOND)
        if schedule.step_ended(second * SECOND, meter, step=second, trains=False):
            windows[-1].append(second)
        elif windows[-1]:
            windows.append([])
    assert [(one[0], len(one)) for one in windows if one] == [(0, 20), (30, 10), (80, 5)]
    assert schedule.is_reserved
    assert schedule.training_begins(201 * SECOND, meter)  # a quarter of it is there still


@pytest.mark.parametrize(
    ("quota", "end", "first", "next_"),
    [
        ("events", End.EVENTS, 500, 250),
        ("bytes", End.BYTES, 750, 125),
        ("rows", End.TABLES, 500, 250),
    ],
)
def test_a_window_ends_in_the_middle_of_a_step_where_its_share_is_used(quota, end, first, next_):
    policy = policy_of(max_events=1000, max_bytes=1000, max_rows=1000)
    schedule, meter = WindowSchedule(policy, 0), OverheadMeter()
    getattr(schedule, quota).take(first - 1)
    assert schedule.time_passed(1, meter)
    getattr(schedule, quota).take(1)
    assert not schedule.time_passed(2, meter)
    assert schedule.end is end
    assert getattr(schedule, quota).room == next_


@pytest.mark.parametrize("quota", ["events", "bytes", "rows"])
def test_what_is_left_of_a_quota_is_kept_for_the_first_steps_that_train(quota):
    policy = policy_of(max_events=1000, max_bytes=1000, max_rows=1000)
    schedule, meter = WindowSchedule(policy, 0), OverheadMeter()
    getattr(schedule, quota).take(getattr(schedule, quota).room)  # generate(), before any step
    assert not schedule.step_ended(1 * SECOND, meter, step=0, trains=False)
    assert schedule.is_reserved
    assert not schedule.step_ended(2 * SECOND, meter, step=1, trains=False)
    assert schedule.training_begins(3 * SECOND, meter)
    assert schedule.reason is Reason.START
    for step in range(2, 6):  # the first of them was not seen from its beginning
        assert schedule.step_ended(step * 2 * SECOND, meter, step=step)
    left = getattr(schedule, quota).room
    getattr(schedule, quota).take(left)
    assert not schedule.step_ended(20 * SECOND, meter, step=6)
    assert not schedule.is_reserved  # three steps were recorded whole


def test_steps_that_each_take_a_quota_do_not_take_all_of_it():
    schedule, meter = WindowSchedule(policy_of(max_events=1000), 0), OverheadMeter()
    windows = []
    for step in range(5):
        for now_us in (4 * step + 1, 4 * step + 2):
            if schedule.is_open:
                windows.append(schedule.events.room)
                schedule.events.take(schedule.events.room)
                assert not schedule.time_passed(now_us, meter)
            schedule.training_begins(now_us, meter)
        schedule.step_ended(4 * step + 3, meter, step=step)
    assert windows == [500, 250]
    assert not schedule.is_reserved


def test_the_first_window_may_take_three_quarters_of_the_bytes_and_each_other_half_of_the_rest():
    quota = WindowSchedule(policy_of(max_bytes=1000), 0).bytes
    rooms = []
    for _ in range(3):
        rooms.append(quota.room)
        quota.take(quota.room)
        quota.window_ended()
    assert rooms == [750, 125, 62]


def test_a_quota_of_nothing_opens_no_window():
    assert not WindowSchedule(policy_of(max_bytes=0), 0).is_open
    assert Quota(1).room == 0


def test_where_no_step_ends_windows_open_by_time_and_last_a_second():
    schedule, meter = WindowSchedule(policy_of(budget=0.5, allowance_us=0), 0), OverheadMeter()
    meter.hook(0.1 * SECOND)
    assert not schedule.time_passed(SECOND // 10, meter)  # the start may not take it all
    opened = []
    for tenth in range(2, 1200):
        was_open = schedule.is_open
        if schedule.time_passed(tenth * SECOND // 10, meter) and not was_open:
            opened.append(tenth)
        elif was_open and not schedule.is_open:
            assert tenth - opened[-1] == 10
        meter.hook(0.02 * SECOND * schedule.is_open)
    assert opened[0] == 101  # ten seconds after the first window
    assert len(opened) >= 4
    gaps = [b - a for a, b in pairwise(opened)]
    assert gaps == sorted(gaps)


def test_a_program_with_long_steps_is_waited_for():
    job = Job(policy_of(budget=0.2), step_us=20 * SECOND, events=100, event_us=30)
    job.meter.hook(11 * SECOND)
    job.run(8)
    assert not job.schedule.is_open
    assert not job.schedule.time_passed(job.now_us + 79 * SECOND, job.meter)
    assert job.schedule.time_passed(job.now_us + 81 * SECOND, job.meter)


# Ranks.


def test_regular_windows_begin_at_multiples_of_a_power_of_two():
    starts = []
    schedule, meter = WindowSchedule(policy_of(allowance_us=0), 0), OverheadMeter()
    meter.hook(900)
    for step in range(200_000):
        was_open = schedule.is_open
        if schedule.step_ended((step + 1) * 100_000, meter, step=step) and not was_open:
            starts.append(step + 1)
    assert starts[:6] == [128, 256, 384, 512, 768, 1024]
    assert all(start % (1 << (start.bit_length() - 2)) == 0 for start in starts if start < 2**16)


def test_ranks_in_lockstep_pay_about_what_the_slowest_of_them_pays():
    ranks = 16
    noise = random.Random(0)
    speeds = [noise.uniform(0.8, 1.2) for _ in range(ranks)]
    schedules = [WindowSchedule(policy_of(ranks=ranks), 0) for _ in range(ranks)]
    meters = [OverheadMeter(ranks) for _ in range(ranks)]
    now_us, job_us, own_us = 0, 0.0, [0.0] * ranks
    for _ in range(12_000):
        is_open = [one.is_open for one in schedules]
        cost = [
            300_000 * s * noise.uniform(0.8, 1.2) * o for s, o in zip(speeds, is_open, strict=True)
        ]
        now_us += 300_000 + round(max(cost))
        edges = []
        for rank, (schedule, meter) in enumerate(zip(schedules, meters, strict=True)):
            meter.hook(cost[rank] + 100)
            meter.step(StepCost(300_000, 0, is_open[rank]))
            if schedule.step_ended(now_us, meter) != is_open[rank]:
                edge = (1_500_000 if is_open[rank] else 300_000) * speeds[rank]
                edges.append(edge)
                meter.hook(edge)
                meter.edge(edge)
            own_us[rank] += cost[rank] + (edges[-1] if schedule.is_open != is_open[rank] else 0)
        now_us += round(max(edges, default=0))
        job_us += max(cost) + max(edges, default=0)
    assert sum(own_us) > 0
    assert job_us <= 2.5 * sum(own_us) / ranks  # it was nine times as much


def windows_of_ranks(
    seed: int, grows_from: int, ranks: int = 8, unseen: int = 0
) -> list[list[tuple]]:
    """Of each rank in lockstep why its windows opened, their first steps, and what came after.

    Between windows up to ``unseen`` steps are not looked at, as where steps are short.
    """
    noise = random.Random(seed)
    speeds = [noise.uniform(0.99, 1.01) for _ in range(ranks)]
    begins = [round(noise.uniform(0, 2 * SECOND)) for _ in range(ranks)]
    schedules = [WindowSchedule(policy_of(ranks=ranks), began) for began in begins]
    meters = [OverheadMeter(ranks) for _ in range(ranks)]
    windows: list[list[tuple]] = [[(Reason.START, 0)] for _ in range(ranks)]
    now_us = 2 * SECOND
    look_again = [0] * ranks
    for step in range(8_000):
        allocated = LEVEL + 100_000 * min(1_000, max(0, step - grows_from))
        is_open = [one.is_open for one in schedules]
        costs = [30_000 * one * noise.uniform(0.95, 1.05) for one in speeds]
        now_us += 100_000 + round(max(costs) * any(is_open))
        edges = [0.0]
        for rank, (schedule, meter) in enumerate(zip(schedules, meters, strict=True)):
            meter.hook(costs[rank] * is_open[rank] + 100)
            meter.step(StepCost(100_000, 0, is_open[rank]))
            at_us = now_us + noise.randrange(3_000)
            is_on_grid = (step + 1) % schedule.look_grid(at_us) == 0
            if not is_open[rank] and step < look_again[rank] and not is_on_grid:
                continue
            look_again[rank] = step + 1 + noise.randrange(unseen + 1)
            bytes_now = allocated + noise.randrange(4_096)
            if schedule.step_ended(at_us, meter, bytes_now, step=step) == is_open[rank]:
                continue
            edges.append(50_000 * speeds[rank])
            meter.hook(edges[-1])
            meter.edge(edges[-1])
            if is_open[rank]:
                windows[rank][-1] += (step + 1,)
            else:
                windows[rank].append((schedule.reason, step + 1))
        now_us += round(max(edges))
    return windows


@pytest.mark.parametrize("unseen", [0, 6])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("grows_from", "first"),
    [
        (9_000, (Reason.REGULAR, 6_144, 6_149)),
        (700, (Reason.GROWTH, 736, 741)),
        (5_000, (Reason.GROWTH, 6_144, 6_149)),  # the rest of the allowance is used up by then
    ],
)
def test_ranks_whose_clocks_and_costs_differ_by_a_hundredth_record_the_same_steps(
    seed, grows_from, first, unseen
):
    windows = windows_of_ranks(seed, grows_from, unseen=unseen)
    assert windows[0][:2] == [(Reason.START, 0, 96), first]
    assert windows == [windows[0]] * len(windows)


# One figure.


def test_what_is_timed_is_not_estimated_a_second_time():
    meter = OverheadMeter()
    for i in range(40):
        meter.hook(300)
        meter.step(StepCost(10_000 + noise_of(i), 100 * (i < 20), i < 20))
    assert meter.total_us == 40 * 300


def noise_of(i: int) -> int:
    """Another program on the machine makes every step with a window twice as long."""
    return 10_000 * (i < 20)


def test_a_noisy_machine_cannot_make_an_event_cost_more_than_four_times_its_prior():
    meter = OverheadMeter()
    for i in range(40):
        events = 100 * (i < 20)
        meter.step(StepCost(10_000 + noise_of(i) * 100, events, i < 20, 3.0 * events))
    assert meter.event_us == 12


def test_events_in_the_middle_of_a_step_are_counted_once():
    meter = OverheadMeter()
    meter.events(60, 600.0)
    assert meter.total_us == 600
    meter.step(StepCost(1000, 100, in_window=True, prior_us=1000.0))
    assert meter.total_us == 1000


def test_a_window_is_expected_to_cost_its_hooks_too():
    meter = OverheadMeter()
    for _ in range(10):
        meter.hook(500)
        meter.step(StepCost(10_000, 100, in_window=True))
    meter.hook(7_000)
    meter.edge(7_000)
    assert meter.window_us(5) == 2 * 7_000 + 5 * 500
