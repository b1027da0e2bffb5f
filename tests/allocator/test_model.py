"""The live model keeps its books under random programs, and follows torch's rules one by one."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memprof.allocator import (
    AllocatorSettings,
    CachingAllocator,
    Driver,
    Recorder,
    TieBreak,
    parse_settings,
    replay_recorded,
)
from memprof.allocator.guided_replay import Doubt
from memprof.allocator.pools import ALLOCATED, FREE, PENDING, UNMAPPED
from memprof.allocator.rounding import round_size

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
# Examples of Hypothesis, which shrinks what fails: more with MEMPROF_PROGRAMS=20000.
PROGRAMS = int(os.environ.get("MEMPROF_PROGRAMS", "300"))

CONFS = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:20",
    "max_split_size_mb:64,max_non_split_rounding_mb:40",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[1:2,8:4,>:8]",
    "large_segment_size_mb:40",
    "expandable_segments:True,max_split_size_mb:40",
    "expandable_segments:True,roundup_power2_divisions:8",
    "garbage_collection_threshold:0.5,per_process_memory_fraction:0.9",
    "max_split_size_mb:32,garbage_collection_threshold:0.3,per_process_memory_fraction:0.8",
    "expandable_segments:True,garbage_collection_threshold:0.5,per_process_memory_fraction:0.9",
]


@dataclass(frozen=True)
class Program:
    """A random program: what to set up, and what to call."""

    conf: str
    tie_break: TieBreak
    capacity: int
    calls: tuple[tuple[str, int, int, int], ...]


EDGES = [1, 511, 512, 513, MIB, MIB + 1, 2 * MIB, 10 * MIB, 20 * MIB]
SIZES = st.one_of(
    st.integers(1, MIB),
    st.integers(MIB + 1, 12 * MIB),
    st.sampled_from(EDGES),
    st.integers(1, 45).map(lambda n: 2 * MIB * n),
    st.integers(10 * MIB, 90 * MIB),
)
NAMES = ["alloc"] * 6 + ["free"] * 5 + ["defer", "complete", "empty", "apply"]
STREAMS, POOLS = [0, 0, 0, 7], [0, 0, 0, 1]
CAPACITIES = [64 * GIB, 1200 * MIB, 300 * MIB]
CALLS = st.tuples(st.sampled_from(NAMES), SIZES, st.sampled_from(STREAMS), st.sampled_from(POOLS))
PROGRAM = st.builds(
    Program,
    conf=st.sampled_from(CONFS),
    tie_break=st.sampled_from(TieBreak),
    capacity=st.sampled_from(CAPACITIES),
    calls=st.lists(CALLS, min_size=1, max_size=60).map(tuple),
)


def random_program(number):
    """The same kind of program by its number; Hypothesis takes ten times as long to make one."""
    chance = random.Random(number)
    sizes = (
        lambda: chance.randint(1, MIB),
        lambda: chance.randint(MIB + 1, 12 * MIB),
        lambda: chance.choice(EDGES),
        lambda: 2 * MIB * chance.randint(1, 45),
        lambda: chance.randint(10 * MIB, 90 * MIB),
    )
    calls = (
        (
            chance.choice(NAMES),
            chance.choice(sizes)(),
            chance.choice(STREAMS),
            chance.choice(POOLS),
        )
        for _ in range(chance.randint(1, 60))
    )
    return Program(
        chance.choice(CONFS), chance.choice(list(TieBreak)), chance.choice(CAPACITIES), tuple(calls)
    )


def run(program, *, check=None, switch=True):
    """The recorder after the program; ``check`` is called with the model after every call."""
    parsed = parse_settings(program.conf)
    total = None if parsed.memory_fraction is not None else 80 * GIB
    driver = Driver(program.capacity)
    model = CachingAllocator(parsed, tie_break=program.tie_break, driver=driver, device_total=total)
    recorder, live, deferred = Recorder(model), [], []
    for name, size, stream, pool in program.calls:
        if name == "alloc":
            address = recorder.alloc(size, stream, pool)
            live += [] if address is None else [address]
        elif name in ("free", "defer") and live:
            address = live.pop(size % len(live))
            if name == "free":
                recorder.free(address)
            else:
                recorder.request_free(address)
                deferred.append((address, model.live[address]))
        elif name == "complete" and deferred:
            address, block = deferred.pop(0)
            if model.live.get(address) is block and block.state == PENDING:
                recorder.complete_free(address)
        elif name == "empty":
            recorder.empty_cache()
        elif name == "apply" and switch:
            expandable = not model.settings.expandable_segments
            model.apply(replace(model.settings, expandable_segments=expandable))
        if check is not None:
            check(model)
    return recorder


def every_block(model):
    free = [block for arena in model.arenas() for block in [*arena.blocks, *arena.unmapped]]
    return sorted([*free, *model.live.values()], key=lambda block: block.address)


def assert_sound(model):
    """Blocks tile segments, bytes are conserved, free neighbours are merged, lists are ordered."""
    blocks = every_block(model)
    for block, after in pairwise(blocks):
        assert block.address + block.size <= after.address, "two blocks overlap"
    for block in blocks:
        after = block.next
        assert block.size > 0
        if after is not None:
            assert after.prev is block
            assert after.address == block.address + block.size, "a hole between two blocks"
            assert (block.state, after.state) not in ((FREE, FREE), (UNMAPPED, UNMAPPED))
    mapped = [block for block in blocks if block.state != UNMAPPED]
    whole = [block for block in mapped if block.extent is None]
    assert sum(block.size for block in whole) == sum(size for size, _, _ in model.segments.values())
    assert sum(block.size for block in mapped) == model.reserved == model.driver.used
    assert model.reserved <= model.driver.capacity
    assert sum(b.size for b in mapped if b.state == ALLOCATED) == model.allocated
    assert sum(b.size for b in mapped if b.state == PENDING) == model.pending
    assert model.peak_allocated >= model.allocated
    assert model.peak_reserved >= model.reserved
    for arena in model.arenas():
        assert arena.keys == sorted(block.key for block in arena.blocks)
        assert all(block.state == FREE for block in arena.blocks)


def assert_divided(model):
    for block in model.live.values():
        rounded = round_size(block.requested, model.settings.roundup_divisions)
        assert block.requested <= rounded <= block.size


@settings(max_examples=PROGRAMS, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(PROGRAM)
def test_the_books_balance_after_every_call_of_a_random_program(program):
    recorder = run(program, check=assert_sound)
    assert_divided(recorder.model)


@settings(max_examples=PROGRAMS, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(PROGRAM)
def test_replaying_what_the_model_recorded_is_the_identity(program):
    recorder = run(program, switch=False)
    given_settings = recorder.model.settings
    if given_settings.memory_fraction is not None:
        given_settings = None  # a fraction is not recorded: the replay must do without
    replay = replay_recorded(recorder.trace(), given_settings, program.tie_break)

    # A fraction of a small card reserves few addresses: how many no recording says.
    assert replay.doubts == {} or given_settings is None
    assert replay.new_segments_predicted == replay.new_segments
    assert replay.released_segments_predicted == replay.released_segments
    assert replay.peak_reserved == recorder.model.peak_reserved


@settings(max_examples=PROGRAMS, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(PROGRAM, st.floats(0, 1))
def test_a_trace_cut_anywhere_is_replayed_or_what_it_leaves_open_is_said(program, share):
    recorder = run(replace(program, conf=program.conf.partition(",garbage")[0]), switch=False)
    if recorder.model.settings.memory_fraction is not None:
        return
    first = int(share * len(recorder))
    replay = replay_recorded(recorder.trace(first), recorder.model.settings, program.tie_break)

    assert Doubt.HOLES not in replay.doubts.values()
    assert replay.exact + replay.undetermined == replay.allocs
    assert replay.peak_reserved == replay.recorded_peak_reserved


@pytest.mark.slow
def test_the_books_balance_over_twenty_thousand_programs():
    for number in range(20_000):
        program = random_program(number)
        try:
            assert_divided(run(program, check=assert_sound).model)
        except AssertionError as error:
            raise AssertionError(f"program {number}: {program}") from error


def allocator(conf="", capacity=64 * GIB, tie_break=TieBreak.OLDEST_SEGMENT):
    return CachingAllocator(parse_settings(conf), tie_break=tie_break, driver=Driver(capacity))


def segments(model):
    return sorted(size for size, _, _ in model.segments.values())


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (1, 2),
        (1024 * KIB, 2),
        (1024 * KIB + 1, 20),
        (10 * MIB - 512, 20),
        (10 * MIB, 10),
        (11 * MIB + 1, 12),
    ],
)
def test_a_request_that_nothing_serves_obtains_a_segment_of_its_class(size, segment):
    model = allocator()
    model.malloc(size)

    assert segments(model) == [segment * MIB]


def test_the_smallest_block_that_fits_is_split_and_its_front_returned():
    model = allocator()
    blocks = [model.malloc(size) for size in (4 * MIB, 2 * MIB, 6 * MIB, 2 * MIB)]
    places = [block.address for block in blocks]
    for place in (places[0], places[2]):
        model.free(place)

    assert model.malloc(3 * MIB).address == places[0]
    assert model.malloc(5 * MIB).address == places[2]


def test_a_remainder_of_one_mebibyte_stays_with_its_block_in_the_large_pool():
    model = allocator()
    kept = model.malloc(19 * MIB)
    cut = model.malloc(19 * MIB - 512)

    assert kept.size == 20 * MIB
    assert cut.size == 19 * MIB - 512


def test_streams_and_pools_never_share_blocks():
    model = allocator()
    model.free(model.malloc(MIB).address)

    assert model.malloc(MIB, stream=1).address != model.malloc(MIB, pool=1).address
    assert len(model.segments) == 3


def test_neighbours_merge_when_the_last_of_them_is_freed():
    model = allocator()
    blocks = [model.malloc(2 * MIB) for _ in range(3)]
    for index in (0, 2, 1):
        model.free(blocks[index].address)

    assert [block.size for arena in model.arenas() for block in arena.blocks] == [20 * MIB]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [(TieBreak.ADDRESS, "low"), (TieBreak.OLDEST_SEGMENT, "old"), (TieBreak.OLDEST_BLOCK, "old")],
)
def test_equally_large_free_blocks_are_told_apart_by_the_rule_of_the_version(rule, expected):
    model = allocator(tie_break=rule)
    places = {}
    for name, address in (("old", 0x2000_0000_0000), ("low", 0x1000_0000_0000)):
        model.driver.expect(address)
        places[name] = model.malloc(20 * MIB, owner=1).address
    for place in places.values():
        model.free(place)

    assert model.malloc(20 * MIB).address == places[expected]


def test_a_deferred_block_is_neither_reused_nor_merged_until_its_free_completes():
    model = allocator()
    block = model.malloc(MIB)
    model.request_free(block.address)

    assert (model.allocated, model.pending) == (0, MIB)
    assert model.malloc(MIB).address != block.address
    model.complete_free(block.address)
    assert model.malloc(MIB).address == block.address


def test_oversize_blocks_are_not_split_and_serve_only_requests_near_their_size():
    model = allocator("max_split_size_mb:40")
    block = model.malloc(60 * MIB)
    model.free(block.address)

    assert model.malloc(30 * MIB).address != block.address
    assert model.malloc(41 * MIB - 512).size == 60 * MIB
    assert len(model.segments) == 2


def test_a_request_gives_back_oversize_blocks_before_the_whole_cache():
    model = allocator("max_split_size_mb:40", capacity=160 * MIB)
    for address in [model.malloc(size).address for size in (10 * MIB, 60 * MIB, 80 * MIB)]:
        model.free(address)
    model.log.clear()

    assert model.malloc(81 * MIB) is not None
    assert [size for _, _, size, _, _ in model.log] == [80 * MIB, 60 * MIB, 82 * MIB][-3:]
    assert model.retries == 0


def test_a_full_card_gives_back_its_cache_then_fails():
    model = allocator(capacity=100 * MIB)
    model.free(model.malloc(60 * MIB).address)

    assert model.malloc(80 * MIB) is not None
    assert model.retries == 1
    assert model.malloc(60 * MIB) is None
    assert (model.ooms, model.retries) == (1, 2)
    assert model.log[-1][2] == 60 * MIB


def test_waiting_for_streams_completes_deferred_frees_before_memory_runs_out():
    model = allocator(capacity=100 * MIB)
    model.request_free(model.malloc(60 * MIB).address)

    assert model.malloc(80 * MIB) is not None
    assert model.pending == 0


def test_while_a_graph_is_captured_nothing_cached_is_given_back():
    model = allocator(capacity=100 * MIB)
    model.free(model.malloc(60 * MIB).address)
    model.capturing = True

    assert model.malloc(80 * MIB, pool=1) is None
    assert model.retries == 0


def test_a_private_pool_gives_back_its_cache_only_when_nobody_uses_it():
    model = allocator()
    model.free(model.malloc(MIB, pool=3).address)
    model.empty_cache()
    assert len(model.segments) == 1

    model.freeable_pools.add(3)
    model.empty_cache(pool=3)
    assert model.reserved == 0


def test_a_pool_that_lends_serves_the_default_pool_before_the_cache_goes():
    model = allocator(capacity=60 * MIB)
    lent = model.malloc(40 * MIB, pool=2)
    model.free(lent.address)
    model.overflow_pools.append(2)

    assert model.malloc(39 * MIB).address == lent.address
    assert model.retries == 0


def test_a_pool_that_does_not_split_hands_out_whole_blocks():
    model = allocator()
    model.unsplit_pools.add(4)
    model.apply(model.settings)

    assert model.malloc(2 * MIB, pool=4).size == 20 * MIB


def test_the_memory_fraction_refuses_without_asking_the_driver():
    model = allocator("per_process_memory_fraction:0.5", capacity=100 * MIB)

    assert model.malloc(60 * MIB) is None
    assert model.malloc(40 * MIB) is not None


def test_a_rejection_keeps_the_cache():
    conf = "per_process_memory_fraction:0.5,throw_on_cudamalloc_oom:True"
    model = allocator(conf, capacity=100 * MIB)
    model.free(model.malloc(30 * MIB).address)

    assert model.malloc(40 * MIB) is None
    assert (model.oom_rejections, model.retries, model.ooms) == (1, 0, 0)
    assert model.reserved == 30 * MIB


def test_garbage_collection_gives_back_what_was_unused_for_longest():
    conf = "garbage_collection_threshold:0.5,per_process_memory_fraction:1.0"
    parsed = replace(parse_settings(conf), memory_fraction=1.0)
    model = CachingAllocator(parsed, driver=Driver(400 * MIB))
    old, new = model.malloc(100 * MIB).address, model.malloc(90 * MIB).address
    model.free(old)
    for _ in range(5):
        model.malloc(2 * MIB, stream=1)
    model.free(new)
    model.malloc(130 * MIB)

    assert segments(model) == [20 * MIB, 90 * MIB, 130 * MIB]


def test_expandable_segments_map_pages_behind_one_reservation():
    model = allocator("expandable_segments:True")
    first, second = model.malloc(15 * MIB), model.malloc(30 * MIB)

    assert second.address == first.address + 15 * MIB
    assert model.reserved == 60 * MIB
    assert [event[2] for event in model.log] == [20 * MIB, 40 * MIB]


def test_emptying_the_cache_unmaps_whole_pages_inside_free_blocks():
    model = allocator("expandable_segments:True")
    blocks = [model.malloc(30 * MIB) for _ in range(3)]
    model.free(blocks[1].address)
    model.log.clear()
    model.empty_cache()

    (event,) = model.log
    assert event[1:3] == (blocks[0].address + 40 * MIB, 20 * MIB)
    assert model.malloc(25 * MIB).address == blocks[0].address + 30 * MIB


def test_an_expandable_segment_without_memory_gives_its_addresses_back():
    model = allocator("expandable_segments:True")
    first = model.malloc(15 * MIB).address
    model.free(first)
    model.empty_cache()

    assert model.reserved == 0
    assert not any(arena.unmapped for arena in model.arenas())
    assert model.malloc(15 * MIB).address == first


def test_an_expandable_segment_is_larger_than_any_request_where_the_card_has_no_limit():
    model = CachingAllocator(parse_settings("expandable_segments:True"))
    assert model.malloc(1 << 40) is not None


def test_an_expandable_request_on_a_card_without_memory_fails():
    model = CachingAllocator(parse_settings("expandable_segments:True"), driver=Driver(0))
    assert model.malloc(30 * MIB) is None


def test_blocks_of_expandable_segments_are_passed_over_while_those_are_off():
    model = allocator("expandable_segments:True")
    block = model.malloc(15 * MIB)
    model.free(block.address)
    model.apply(AllocatorSettings())

    assert model.malloc(15 * MIB).address != block.address
    assert len(model.segments) == 1
