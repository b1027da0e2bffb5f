"""How long looks take, estimated from those that were made."""

from __future__ import annotations

from memprof.sources.pace import Pace


def test_what_is_thought_holds_until_a_look_was_measured():
    pace = Pace(10.0)
    assert pace.room() == 30_000
    assert pace.duration_us(500) == 5000


def test_the_first_look_that_is_slower_counts_at_once():
    pace = Pace(10.0)
    pace.measured(2000, 2000 * 40.0)
    assert pace.row_us == 40


def test_a_single_slow_look_among_others_does_not_count():
    pace = Pace(10.0)
    for row_us in (11.0, 12.0, 400.0):
        pace.measured(2000, 2000 * row_us)
    assert pace.row_us == 12


def test_looks_that_stay_slow_count():
    pace = Pace(10.0)
    for row_us in (11.0, 12.0, 400.0, 400.0, 400.0):
        pace.measured(2000, 2000 * row_us)
    assert pace.row_us == 400


def test_a_short_look_at_little_says_nothing():
    pace = Pace(10.0)
    pace.measured(10, 5000)
    assert pace.row_us == 10


def test_the_slowest_look_can_be_forgotten_but_never_the_last():
    pace = Pace(10.0)
    pace.measured(2000, 2000 * 400.0)
    for _ in range(3):
        pace.forget_slowest()
    assert pace.row_us == 10


def test_a_first_look_that_took_far_longer_is_forgiven_where_that_is_asked_for():
    pace = Pace(10.0, forgiven=1)
    pace.measured(20, 2_000_000)
    assert pace.row_us == 10
    pace.measured(20, 2_000_000)
    assert pace.row_us == 2000  # as if it had found a thousand
