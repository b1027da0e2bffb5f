"""Lifetimes, timelines and their groups: exact on small traces, equal to plain counting on any."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memprof.testing import TraceBuilder
from memprof.trace import NOT_RECORDED, Action, Category, Frame, Phase, Trace
from memprof.views.lifetimes import block_bytes, lifetimes
from memprof.views.owners import owners, top
from memprof.views.timeline import Peak, grouped, samples, timeline

KIB, MIB = 1 << 10, 1 << 20


def small() -> TraceBuilder:
    return (
        TraceBuilder()
        .existing(MIB, "w")
        .existing(600, "gone")
        .alloc(100, "x", category=Category.ACTIVATION)
        .free("gone")
        .alloc(3 * MIB, "y", stream=4)
        .free("x")
        .alloc(100, "z")
    )


def test_the_timeline_is_counted_from_the_state_at_the_start() -> None:
    line = timeline(small().build())

    held = MIB + 1024
    assert line.allocated.tolist() == [
        held,
        held + 512,  # x
        held - 512,  # gone is freed …
        held - 512,  # … and completed
        held - 512,  # a segment for y
        held - 512 + 3 * MIB,
        held - 1024 + 3 * MIB,  # x is freed …
        held - 1024 + 3 * MIB,
        held - 512 + 3 * MIB,  # z, in the block of x
    ]
    assert line.reserved.tolist() == [2 * MIB] * 4 + [6 * MIB] * 5
    assert line.peak_allocated == Peak(held - 512 + 3 * MIB, 4)
    assert line.peak_reserved == Peak(6 * MIB, 3)


@pytest.mark.parametrize(("start", "end"), [(True, True), (True, False), (False, True)])
def test_lifetimes_say_which_event_made_and_ended_each_block(start: bool, end: bool) -> None:
    lives = lifetimes(small().build(start=start, end=end))

    rows = sorted(zip(lives.alloc.tolist(), lives.free.tolist(), lives.size.tolist(), strict=True))
    assert rows == [(-1, 1, 1024), (-1, 8, MIB), (0, 5, 512), (4, 8, 3 * MIB), (7, 8, 512)]
    assert sorted(lives.requested.tolist()) == [100, 100, 600, MIB, 3 * MIB]
    assert lives.take(lives.alloc == 4).stream.tolist() == [4]
    assert lives.take(lives.alloc == 0).category.tolist() == [Category.ACTIVATION]
    assert sorted(lives.size[lives.alive_at(-1)].tolist()) == [1024, MIB]
    assert sorted(lives.size[lives.alive_at(0)].tolist()) == [512, 1024, MIB]
    assert sorted(lives.size[lives.alive_at(7)].tolist()) == [512, MIB, 3 * MIB]


def test_a_start_alone_and_an_end_alone_tell_the_same() -> None:
    both = timeline(small().build())
    for start, end in ((True, False), (False, True)):
        line = timeline(small().build(start=start, end=end))
        assert line.allocated.tolist() == both.allocated.tolist()
        if end:
            assert line.reserved.tolist() == both.reserved.tolist()


def test_without_events_the_state_is_the_whole_timeline() -> None:
    line = timeline(TraceBuilder().existing(KIB, "w").build())

    assert line.allocated.tolist() == [1024]
    assert line.reserved.tolist() == [2 * MIB]
    assert line.time_us.tolist() == [NOT_RECORDED]
    assert line.peak_allocated == Peak(1024, -1)


def test_a_block_that_waits_for_its_stream_is_no_longer_allocated() -> None:
    builder = TraceBuilder().alloc(KIB, "x").free("x", complete=False)

    assert timeline(builder.build()).allocated.tolist() == [0, 0, 1024, 0]
    again = TraceBuilder().existing(KIB, "x").existing(KIB, "y").free("x", complete=False)
    assert timeline(again.completed("x").build()).allocated.tolist() == [2048, 1024, 1024]


def test_a_free_that_only_completes_in_the_trace_was_no_allocation_in_it() -> None:
    whole = TraceBuilder().alloc(KIB, "a").alloc(KIB, "x").free("x").build()
    tail = replace(whole, events=whole.events.take(slice(4, 5)), start=None)
    assert tail.events.action.tolist() == [Action.FREE_COMPLETED]

    assert timeline(tail).allocated.tolist() == [1024, 1024]


def test_two_allocations_at_one_address_end_the_first_at_the_second() -> None:
    trace = TraceBuilder().alloc(KIB, "x").free("x").alloc(KIB, "y").build()
    lost = replace(trace, events=trace.events.take([0, 1, 4]))

    lives = lifetimes(lost)
    assert lives.free.tolist() == [2, 3]
    assert timeline(lost).allocated.tolist() == [0, 0, 1024, 1024]


@pytest.mark.parametrize(
    ("requested", "taken"),
    [(0, 512), (1, 512), (512, 512), (513, 1024), (MIB + 1, MIB + 512), (1 << 40, 1 << 40)],
)
def test_requests_are_rounded_up_to_512_bytes(requested: int, taken: int) -> None:
    assert block_bytes([requested], {}).tolist() == [taken]


@pytest.mark.parametrize(
    ("divisions", "requested", "taken"),
    [
        (4, 1200 * KIB, 1280 * KIB),  # between 1 and 2 MiB in steps of 256 KiB
        (4, 1280 * KIB, 1280 * KIB),
        (4, 2 * KIB, 2 * KIB),  # not beyond 512 * 4: rounded as ever
        (4, 2 * KIB + 1, 2560),
        (1, 1200 * KIB, 1200 * KIB),
        (0, 1200 * KIB, 1200 * KIB),
    ],
)
def test_recorded_divisions_of_powers_of_two_round_further(
    divisions: int, requested: int, taken: int
) -> None:
    settings = {"roundup_power2_divisions": {str(1 << i): divisions for i in range(16)}}
    assert block_bytes([requested], settings).tolist() == [taken]


# -- any trace ---------------------------------------------------------------------------------

Program = list[tuple[int, int]]
programs = st.lists(st.tuples(st.integers(0, 11), st.integers(1, 4 * MIB)), max_size=60)


def built(program: Program, before: Program) -> tuple[TraceBuilder, list[int]]:
    """The trace of a random program, and its allocated bytes counted on the way."""
    builder, live, levels = TraceBuilder(), {}, []
    for key, size in before:
        if str(key) not in live:
            builder.existing(size, str(key))
            live[str(key)] = -(-size // 512) * 512
    levels.append(sum(live.values()))
    for key, size in program:
        name, count = str(key), len(builder)
        if name in live:
            builder.free(name)
            del live[name]
            levels += [sum(live.values())] * (len(builder) - count)
        else:
            builder.alloc(size, name, stream=key % 2, category=Category(1 + key % 7))
            levels += [levels[-1]] * (len(builder) - count - 1)
            live[name] = -(-size // 512) * 512
            levels.append(sum(live.values()))
    return builder, levels


@given(programs, programs)
def test_vectors_count_what_plain_counting_counts(program: Program, before: Program) -> None:
    builder, levels = built(program, before)

    assert timeline(builder.build()).allocated.tolist() == levels
    assert timeline(builder.build(end=False)).allocated.tolist() == levels
    assert timeline(builder.build(start=False)).allocated.tolist() == levels
    trace = builder.build()
    line = timeline(trace)
    assert line.allocated[-1] == trace.end.allocated  # type: ignore[union-attr]
    assert line.reserved[0] == trace.start.reserved  # type: ignore[union-attr]


@given(programs, programs, st.integers(1, 40))
def test_groups_add_up_to_what_is_allocated_at_every_sample(
    program: Program, before: Program, count: int
) -> None:
    builder, _ = built(program, before)
    for ends in ({"end": False}, {"start": False}, {}):
        trace = builder.build(**ends)
        line = timeline(trace)
        at = samples(line, count)
        split = owners(trace, line.lives)
        for group in (split.category, split.module, split.site, split.phase):
            sums = grouped(line, group.of, len(group.names), at)
            assert sums.shape == (len(group.names), len(at))
            assert (sums >= 0).all()
            assert sums.sum(axis=0).tolist() == line.allocated[at].tolist()


@given(programs, programs, st.integers(1, 20))
def test_samples_keep_the_ends_and_every_peak(
    program: Program, before: Program, count: int
) -> None:
    line = timeline(built(program, before)[0].build())
    at = samples(line, count)

    assert at[0] == 0
    assert at[-1] == len(line.allocated) - 1
    assert (np.diff(at) > 0).all()
    assert len(at) <= max(2 * count + 3, 2)
    assert line.allocated[at].max() == line.allocated.max()
    assert line.allocated[at].min() == line.allocated.min()
    assert line.reserved[at].max() == line.reserved.max()


# -- owners ------------------------------------------------------------------------------------

TRAIN = Frame("main", "/home/u/train.py", 31)


def labelled() -> Trace:
    return (
        TraceBuilder()
        .existing(4 * KIB, "w", category=Category.PARAMETER, stack=[TRAIN])
        .label(step=0, phase=Phase.FORWARD, module="Net.fc")
        .alloc(KIB, "a", category=Category.ACTIVATION, stack=[TRAIN])
        .label(step=0, phase=Phase.BACKWARD)
        .alloc(2 * KIB, "g", category=Category.GRADIENT)
        .build()
    )


def names(trace: Trace, which: str) -> list[str]:
    group: Any = getattr(owners(trace, lifetimes(trace)), which)
    return [group.names[i] for i in group.of]


def test_recorded_categories_modules_and_phases_are_taken_as_they_are() -> None:
    trace = labelled()

    assert not owners(trace, lifetimes(trace)).inferred
    assert names(trace, "category") == ["parameter", "activation", "gradient"]
    assert names(trace, "module") == ["(no module)", "Net.fc", "(no module)"]
    assert names(trace, "phase") == ["unknown", "forward", "backward"]
    site = "u/train.py:31 in main"
    assert names(trace, "site") == [site, site, "(no stack recorded)"]


def test_the_largest_groups_come_first_and_the_rest_is_one() -> None:
    trace = labelled()
    lives = lifetimes(trace)
    split, everything = owners(trace, lives), np.ones(len(lives), dtype=bool)

    largest = top(split.category, lives.size, everything, 1)
    assert [(g.name, g.bytes, g.count, g.index) for g in largest] == [
        ("parameter", 4 * KIB, 1, 1),
        ("(2 others)", 3 * KIB, 2, -1),
    ]
    assert top(split.category, lives.size, ~everything, 3) == []
