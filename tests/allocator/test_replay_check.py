"""Replays predict recorded events, and say what a recording leaves open."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from memprof.allocator import (
    CachingAllocator,
    Driver,
    Recorder,
    TieBreak,
    fragmentation,
    inferred_settings,
    parse_settings,
    replay_recorded,
    replayed_trace,
    segment_map,
    tie_break_of,
)
from memprof.allocator.explain_releases import ReleaseCause
from memprof.allocator.guided_replay import Doubt
from memprof.trace import NOT_RECORDED, Action, Tables

MIB = 1 << 20


def recorder(conf="", capacity=1 << 40, tie_break=TieBreak.OLDEST_SEGMENT):
    driver = Driver(capacity)
    return Recorder(CachingAllocator(parse_settings(conf), driver=driver, tie_break=tie_break))


def test_an_address_that_the_model_does_not_predict_counts_as_wrong():
    recording = recorder()
    first = recording.alloc(4 * MIB)
    recording.alloc(2 * MIB)
    recording.free(first)
    recording.alloc(3 * MIB)
    trace = recording.trace()
    moved = trace.events.address.copy()
    moved[-1] += 8 * MIB  # somewhere free, but not the best fit
    replay = replay_recorded(replace(trace, events=replace(trace.events, address=moved)))

    assert list(replay.doubts) == [len(moved) - 1]
    assert replay.predicted[-1] == first
    assert replay.exact == replay.allocs - 1


def test_the_rule_of_an_unknown_version_is_found_by_what_it_explains():
    def program(tie_break):
        recording = recorder(tie_break=tie_break)
        recording.model.driver.expect(1 << 45)
        old = recording.alloc(30 * MIB)
        recording.model.driver.expect(1 << 44)
        new = recording.alloc(30 * MIB)
        recording.free(old)
        recording.free(new)
        recording.alloc(30 * MIB)
        return recording.trace()

    for rule in (TieBreak.ADDRESS, TieBreak.OLDEST_SEGMENT):
        replay = replay_recorded(program(rule))
        assert replay.tie_break is rule
        assert replay.doubts == {}


def test_versions_of_torch_break_ties_by_their_own_rule():
    assert tie_break_of("2.11.0+cu128") is TieBreak.ADDRESS
    assert tie_break_of("2.12") is TieBreak.OLDEST_BLOCK
    assert tie_break_of("2.15.1") is TieBreak.OLDEST_SEGMENT
    assert tie_break_of("") is None


def test_the_order_of_segments_from_before_the_trace_shows_once_and_counts_from_then_on():
    recording = recorder()
    for address in (1 << 45, 1 << 44):
        recording.model.driver.expect(address)
        recording.free(recording.alloc(30 * MIB))
        recording.alloc(30 * MIB)
    for address in list(recording.model.live):
        recording.free(address)
    first = len(recording)
    for _ in range(3):
        recording.free(recording.alloc(30 * MIB))
    replay = replay_recorded(recording.trace(first), tie_break=TieBreak.OLDEST_SEGMENT)

    assert replay.doubts == {0: Doubt.START_ORDER}
    assert replay.undetermined == 1
    assert replay.predicted.tolist() == [1 << 45] * 3


def test_a_release_before_a_retry_is_told_from_a_call_of_empty_cache():
    recording = recorder(capacity=100 * MIB)
    recording.free(recording.alloc(60 * MIB))
    recording.alloc(80 * MIB)
    recording.free(next(iter(recording.model.live)))
    recording.empty_cache()
    recording.alloc(MIB)
    trace = recording.trace()
    stacks = np.zeros(len(trace.events), dtype=np.int32)
    stacks[trace.events.action == Action.SEGMENT_FREE] = [1, 2]
    stacks[trace.events.action == Action.SEGMENT_ALLOC] = [1, 1, 3]
    tables = Tables(stacks=((),) * 4)
    replay = replay_recorded(
        replace(trace, events=replace(trace.events, stack=stacks), tables=tables)
    )

    assert [run.retry for run in replay.releases] == [True, False]
    assert [run.causes for run in replay.releases] == [(ReleaseCause.CACHE,)] * 2
    assert replay.released_segments_predicted == 2


def test_pools_that_the_recording_does_not_name_are_those_of_the_segments():
    recording = recorder()
    kept = [recording.alloc(MIB, pool=pool) for pool in (0, 1, 0, 1)]
    recording.free(kept[1])
    recording.free(kept[2])
    recording.alloc(512, pool=1)
    recording.alloc(512, pool=0)
    trace = recording.trace()
    unnamed = np.full(len(trace.events), NOT_RECORDED)
    replay = replay_recorded(replace(trace, events=replace(trace.events, pool=unnamed)))

    assert replay.doubts == {}


def test_a_pool_with_an_allocator_of_its_own_does_not_expand():
    recording = recorder("expandable_segments:True")
    recording.model.fixed_pools.add(1)
    recording.model.apply(recording.model.settings)
    for size in (3 * MIB, 5 * MIB, 100):
        recording.alloc(size, pool=1)
        recording.alloc(size)
    replay = replay_recorded(recording.trace())

    assert replay.doubts == {}
    assert replay.new_segments_predicted == replay.new_segments


def test_switching_expandable_segments_in_the_midst_is_noticed():
    recording = recorder()
    recording.alloc(3 * MIB)
    recording.model.apply(parse_settings("expandable_segments:True"))
    recording.alloc(30 * MIB)
    trace = replace(recording.trace(), settings={"expandable_segments": False})
    replay = replay_recorded(trace)

    assert replay.doubts == {}
    assert "switched on or off at event 3" in " ".join(replay.notes)


def test_a_request_that_failed_is_seen_with_what_filled_the_card():
    recording = recorder(capacity=100 * MIB)
    recording.alloc(90 * MIB)
    assert recording.alloc(20 * MIB) is None
    replay = replay_recorded(recording.trace())

    assert replay.doubts == {}
    assert replay.peak_reserved == 90 * MIB


def test_settings_that_an_old_snapshot_lacks_are_read_off_its_blocks():
    recording = recorder("roundup_power2_divisions:4,expandable_segments:True")
    for size in (1000, 5000, 70_000, 123_456):
        recording.alloc(size)
    settings = inferred_settings(replace(recording.trace(), settings={}))

    assert settings.expandable_segments
    assert settings.roundup_divisions == (4,) * 16


def test_a_replay_counts_the_remainder_that_was_not_split_off():
    recording = recorder()
    recording.alloc(19 * MIB + 512)
    trace = replayed_trace(recording.trace()).trace

    assert trace.events.block_size.tolist() == [0, 20 * MIB]
    assert trace.start is not None
    assert trace.start.reserved == 0


def test_a_segment_map_shows_any_moment():
    recording = recorder()
    first = recording.alloc(3 * MIB)
    recording.alloc(2 * MIB)
    recording.free(first)
    trace = recording.trace()

    assert segment_map(trace, 0).reserved == 0
    assert segment_map(trace, 3).allocated == 5 * MIB
    end = segment_map(trace, len(trace.events))
    assert end.blocks.address.tolist() == trace.end.blocks.address.tolist()
    assert end.blocks.state.tolist() == trace.end.blocks.state.tolist()


def test_fragmentation_is_sampled_from_start_to_end():
    recording = recorder()
    for _ in range(50):
        recording.free(recording.alloc(3 * MIB))
    series = fragmentation(recording.trace(), samples=10)

    assert series.event[0] == 0
    assert series.event[-1] == len(recording)
    assert series.reserved[-1] == 20 * MIB
    assert series.largest_free[-1] == 20 * MIB
    assert series.allocated[-1] == 0
