"""How long looks take, estimated from those that were made."""

from __future__ import annotations

from memprof.sources.cuda.read_budget import BLOCK_ROWS, LONGEST_US, Backoff, ReadCost


def test_what_is_thought_holds_until_a_look_was_measured():
    pace = ReadCost(10.0)
    assert pace.room() == 30_000
    assert pace.duration_us(500) == 5000


def test_the_first_look_that_is_slower_counts_at_once():
    pace = ReadCost(10.0)
    pace.add_measurement(2000, 2000 * 40.0)
    assert pace.row_us == 40


def test_a_single_slow_look_among_others_does_not_count():
    pace = ReadCost(10.0)
    for row_us in (11.0, 12.0, 400.0):
        pace.add_measurement(2000, 2000 * row_us)
    assert pace.row_us == 12


def test_looks_that_stay_slow_count():
    pace = ReadCost(10.0)
    for row_us in (11.0, 12.0, 400.0, 400.0, 400.0):
        pace.add_measurement(2000, 2000 * row_us)
    assert pace.row_us == 400


def test_a_short_look_at_little_says_nothing():
    pace = ReadCost(10.0)
    pace.add_measurement(10, 5000)
    assert pace.row_us == 10


def test_the_slowest_look_is_forgotten_first():
    pace = ReadCost(10.0)
    pace.add_measurement(2000, 2000 * 400.0)
    pace.grow_bolder()
    assert pace.row_us == 10


def test_a_first_look_that_took_far_longer_is_forgiven_where_that_is_asked_for():
    pace = ReadCost(10.0, forgiven=1)
    pace.add_measurement(20, 2_000_000)
    assert pace.row_us == 10
    pace.add_measurement(20, 2_000_000)
    assert pace.row_us == 2000  # as if it had found a thousand


def test_each_refusal_halves_what_is_thought_where_nothing_was_measured():
    pace = ReadCost(16.0)
    for expected in (8, 4, 2):
        pace.grow_bolder()
        assert pace.row_us == expected


def test_blocks_take_a_part_of_the_room_and_may_take_more_than_a_look_should():
    pace = ReadCost(4.0)
    assert pace.room() == 75_000
    assert pace.room(blocks=200_000) == 75_000 - 60_000
    assert pace.room(blocks=300_000) == LONGEST_US / 4 - BLOCK_ROWS * 300_000 == 35_000
    assert pace.room(blocks=1_000_000) == 0


def test_what_is_refused_is_tried_after_twice_the_time_until_it_works():
    now_us = 0.0
    backoff = Backoff(lambda: now_us)
    assert not backoff.is_refused
    assert not backoff.is_due
    for gap_s in (10, 20, 40, 10):
        backoff.refuse()
        now_us += gap_s * 1e6 - 1
        assert backoff.is_refused
        now_us += 1
        assert backoff.is_due
        backoff.postpone()
        assert not backoff.is_due
        if gap_s == 40:
            backoff.succeeded()


def test_the_gap_between_two_tries_has_an_end():
    now_us = 0.0
    backoff = Backoff(lambda: now_us)
    for _ in range(30):
        backoff.refuse()
    now_us += 3600e6
    assert backoff.is_due
