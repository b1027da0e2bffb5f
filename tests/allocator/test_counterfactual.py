"""The same program on other cards, under other settings and with other lifetimes."""

from __future__ import annotations

import numpy as np
import pytest

from memprof.allocator import (
    CachingAllocator,
    Changes,
    Driver,
    Recorder,
    parse_settings,
    play,
    workload_of,
)
from memprof.trace import Action

MIB = 1 << 20


def recorder(conf="", capacity=1 << 40):
    return Recorder(CachingAllocator(parse_settings(conf), driver=Driver(capacity)))


def random_program(seed, conf="", capacity=1 << 40):
    rng, recording, live = np.random.default_rng(seed), recorder(conf, capacity), []
    for _ in range(400):
        if live and rng.random() < 0.47:
            recording.free(live.pop(int(rng.integers(len(live)))))
        else:
            address = recording.alloc(int(2 ** rng.uniform(8, 26)))
            live += [] if address is None else [address]
    return recording


def test_as_recorded_it_comes_to_what_was_recorded():
    for seed in range(5):
        workload = workload_of(random_program(seed).trace())
        assert play(workload) == workload.recorded


def test_a_recording_that_begins_in_the_midst_goes_on_from_there():
    recording = random_program(7)
    workload = workload_of(recording.trace(200))

    assert play(workload) == workload.recorded


@pytest.mark.parametrize("conf", ["expandable_segments:True", "max_split_size_mb:20", ""])
def test_other_settings_come_to_what_the_program_comes_to_under_them(conf):
    told = play(workload_of(random_program(3).trace()), parse_settings(conf))
    truth = random_program(3, conf).model

    assert told.peak_allocated == truth.peak_allocated
    assert told.peak_reserved == truth.peak_reserved
    assert told.driver_allocs == truth.device_allocs


def test_a_smaller_card_retries_and_then_fails_where_the_program_would():
    capacity = 350 * MIB
    told = play(workload_of(random_program(3).trace()), capacity=capacity)
    recording = recorder(capacity=capacity)
    rng, live, failed = np.random.default_rng(3), [], None
    while failed is None:
        if live and rng.random() < 0.47:
            recording.free(live.pop(int(rng.integers(len(live)))))
        else:
            size = int(2 ** rng.uniform(8, 26))
            address = recording.alloc(size)
            failed = size if address is None else None
            live.append(address)

    assert told.oom is not None
    assert told.oom.requested == recording.model.rounded(failed)
    assert told.oom.allocated == recording.model.allocated
    assert told.retries == recording.model.retries


def test_an_allocation_that_would_not_have_been_takes_nothing():
    recording = recorder()
    recording.alloc(30 * MIB)
    big = len(recording) + 1
    recording.alloc(70 * MIB)
    workload = workload_of(recording.trace())
    without = play(workload, changes=Changes(never=np.array([big])))

    assert workload.recorded.peak_reserved == 100 * MIB
    assert without.peak_reserved == without.peak_allocated == 30 * MIB


def test_memory_freed_early_is_there_for_what_comes_next():
    recording = recorder()
    leak = len(recording) + 1
    kept = recording.alloc(30 * MIB)
    recording.alloc(30 * MIB)
    recording.free(kept)
    workload = workload_of(recording.trace())
    outcome = play(workload, changes=Changes(freed=np.array([leak]), freed_after=np.array([leak])))

    assert workload.recorded.peak_reserved == 60 * MIB
    assert outcome.peak_reserved == 30 * MIB


def test_blocks_that_are_gone_at_the_start_leave_their_memory_free():
    recording = recorder()
    leak = recording.alloc(30 * MIB)
    first = len(recording)
    recording.alloc(30 * MIB)
    workload = workload_of(recording.trace(first))
    outcome = play(workload, changes=Changes(freed_initial=np.array([leak])))

    assert outcome.peak_reserved == 30 * MIB
    assert outcome.driver_allocs == 0


def test_blocks_of_the_start_can_be_freed_in_the_midst_of_the_trace():
    recording = recorder()
    leak = recording.alloc(30 * MIB)
    first = len(recording)
    recording.alloc(30 * MIB)
    recording.alloc(30 * MIB)
    workload = workload_of(recording.trace(first))
    changes = Changes(freed_initial=np.array([leak]), freed_initial_after=np.array([1]))
    outcome = play(workload, changes=changes)

    assert workload.recorded.peak_reserved == 90 * MIB
    assert outcome.peak_reserved == 60 * MIB


def test_what_was_live_at_the_start_is_laid_out_afresh_under_other_settings():
    recording = recorder()
    for size in (19 * MIB, 3 * MIB, 17 * MIB):
        recording.alloc(size)
    first = len(recording)
    recording.alloc(MIB)
    outcome = play(workload_of(recording.trace(first)), parse_settings("expandable_segments:True"))

    assert outcome.peak_reserved == 42 * MIB
    assert "afresh" in outcome.notes[0]


def test_a_start_that_does_not_fit_is_out_of_memory_before_the_first_event():
    recording = recorder()
    recording.alloc(100 * MIB)
    first = len(recording)
    recording.alloc(MIB)
    outcome = play(workload_of(recording.trace(first)), capacity=50 * MIB)

    assert outcome.oom is not None
    assert outcome.oom.event == -1
    assert outcome.oom.requested == 100 * MIB


def test_a_cache_from_before_the_trace_is_given_up_on_a_smaller_card():
    recording = recorder()
    recording.free(recording.alloc(100 * MIB))
    first = len(recording)
    recording.alloc(MIB)
    outcome = play(workload_of(recording.trace(first)), capacity=50 * MIB)

    assert outcome.fits
    assert outcome.peak_reserved == 2 * MIB


def test_the_card_of_a_recording_is_told_by_its_refusals():
    recording = random_program(3, capacity=350 * MIB)
    workload = workload_of(recording.trace())

    assert recording.model.ooms > 0
    assert workload.recorded.oom is not None
    assert 330 * MIB <= workload.capacity <= 350 * MIB
    assert play(workload).oom is not None


def test_a_request_that_failed_is_tried_again_and_given_back_where_it_succeeds():
    recording = recorder(capacity=100 * MIB)
    recording.alloc(60 * MIB)
    assert recording.alloc(50 * MIB) is None
    outcome = play(workload_of(recording.trace()), capacity=200 * MIB)

    assert outcome.fits
    assert outcome.peak_reserved == 110 * MIB
    assert "event 2) is served" in outcome.notes[0]


def test_calls_of_empty_cache_are_part_of_the_program():
    recording = recorder()
    for _ in range(3):
        recording.free(recording.alloc(30 * MIB))
        recording.empty_cache()
    workload = workload_of(recording.trace())
    outcome = play(workload, parse_settings("expandable_segments:True"))

    assert len(workload.emptied) == 3
    assert outcome.driver_frees == 3


def test_frees_that_a_full_card_completed_early_are_not_completed_again():
    recording = recorder()
    waiting = recording.alloc(60 * MIB)
    recording.request_free(waiting)
    recording.alloc(80 * MIB)
    recording.complete_free(waiting)
    workload = workload_of(recording.trace())
    outcome = play(workload, capacity=100 * MIB)

    assert outcome.fits
    assert outcome.retries == 1
    assert int((workload.events.action == Action.FREE_COMPLETED).sum()) == 1
