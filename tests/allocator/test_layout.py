"""CPU traces are laid out as the caching allocator would have laid them out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from memprof.allocator import layout
from memprof.trace import (
    Action,
    Blocks,
    BlockState,
    Category,
    Events,
    LastReads,
    State,
    Tables,
    Trace,
)

KIB, MIB = 1 << 10, 1 << 20


def cpu_trace(*rows: tuple[Action, int, int], start: State | None = None) -> Trace:
    action, address, size = zip(*rows, strict=True) if rows else ((), (), ())
    events = Events.build(
        length=len(rows),
        action=action,
        address=address,
        size=size,
        time_us=range(len(rows)),
        category=[Category.ACTIVATION if a == Action.ALLOC else 0 for a in action],
    )
    return Trace("cpu", events, Tables(), start=start or State())


def test_an_allocation_gets_a_segment_before_it_and_the_first_address_in_it() -> None:
    trace = layout(cpu_trace((Action.ALLOC, 7, 3 * MIB)))

    assert trace.events.action.tolist() == [Action.SEGMENT_ALLOC, Action.ALLOC]
    assert trace.events.size.tolist() == [20 * MIB, 3 * MIB]
    assert trace.events.address[0] == trace.events.address[1]
    assert trace.events.block_size.tolist() == [0, 3 * MIB]
    assert trace.modelled


def test_inserted_rows_carry_time_of_the_event_they_serve_and_no_category() -> None:
    rows = (Action.ALLOC, 7, KIB), (Action.FREE_REQUESTED, 7, KIB)
    events = layout(cpu_trace(*rows)).events

    expected = [Action.SEGMENT_ALLOC, Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED]
    assert events.action.tolist() == expected
    assert events.time_us.tolist() == [0, 0, 1, 1]
    assert events.category.tolist() == [0, Category.ACTIVATION, 0, 0]


def test_a_recorded_completion_keeps_the_block_pending_until_then() -> None:
    trace = layout(
        cpu_trace(
            (Action.ALLOC, 1, KIB),
            (Action.FREE_REQUESTED, 1, KIB),
            (Action.ALLOC, 2, KIB),
            (Action.FREE_COMPLETED, 1, KIB),
            (Action.ALLOC, 3, KIB),
        )
    )

    allocs = trace.events.address[trace.events.action == Action.ALLOC]
    assert len(trace.events) == 6
    assert allocs[1] == allocs[0] + KIB
    assert allocs[2] == allocs[0]


def test_blocks_live_at_the_start_are_placed_in_their_order() -> None:
    blocks = Blocks.build(
        address=[900, 100],
        size=[KIB, 2 * KIB],
        requested=[KIB, 2 * KIB],
        state=[BlockState.ACTIVE_ALLOCATED] * 2,
        segment=[-1, -1],
        label=[4, 5],
    )
    trace = layout(cpu_trace((Action.FREE_REQUESTED, 100, 2 * KIB), start=State(blocks=blocks)))

    assert trace.start is not None
    assert trace.end is not None
    assert trace.start.blocks.label.tolist() == [4, 5, 0]
    assert trace.start.blocks.size.tolist() == [KIB, 2 * KIB, 2 * MIB - 3 * KIB]
    assert trace.start.allocated == 3 * KIB
    assert trace.start.reserved == 2 * MIB
    assert trace.events.address[0] == trace.start.blocks.address[1]
    assert trace.end.allocated == KIB


def test_the_end_state_tiles_its_segments() -> None:
    rng = np.random.default_rng(0)
    rows: list[tuple[Action, int, int]] = []
    live: list[tuple[int, int]] = []
    for key in range(2000):
        if live and rng.random() < 0.48:
            freed, size = live.pop(int(rng.integers(len(live))))
            rows.append((Action.FREE_REQUESTED, freed, size))
        size = int(2 ** rng.uniform(3, 26))
        rows.append((Action.ALLOC, key, size))
        live.append((key, size))
    end = layout(cpu_trace(*rows)).end

    assert end is not None
    assert end.requested == sum(size for _, size in live)
    assert end.blocks.size.sum() == end.segments.size.sum() == end.reserved
    ends = (end.blocks.address + end.blocks.size)[:-1]
    same_segment = end.blocks.segment[:-1] == end.blocks.segment[1:]
    assert (ends[same_segment] == end.blocks.address[1:][same_segment]).all()


def test_a_free_of_an_unknown_key_becomes_an_event_of_no_known_kind() -> None:
    assert layout(cpu_trace((Action.FREE_REQUESTED, 5, 8))).events.action.tolist() == [Action.OTHER]


def test_an_allocation_at_a_live_key_frees_what_was_there() -> None:
    trace = layout(cpu_trace((Action.ALLOC, 1, KIB), (Action.ALLOC, 1, MIB)))

    assert trace.end is not None
    assert trace.end.requested == MIB
    assert Action.FREE_COMPLETED in trace.events.action.tolist()


def test_last_reads_point_at_the_same_events_as_before() -> None:
    trace = cpu_trace(
        (Action.ALLOC, 1, 3 * MIB),
        (Action.ALLOC, 2, 30 * MIB),
        (Action.ALLOC, 3, 30 * MIB),
        (Action.FREE_REQUESTED, 2, 30 * MIB),
        (Action.FREE_REQUESTED, 1, 3 * MIB),
    )
    reads = LastReads(np.array([1]), np.array([3]), np.array([0.5]))
    laid_out = layout(replace(trace, last_reads=reads))

    made, read = laid_out.last_reads.made, laid_out.last_reads.read
    assert made.tolist() == [3]
    assert read.tolist() == [6]
    assert laid_out.events.size[made].tolist() == [30 * MIB]
    assert laid_out.events.action[read].tolist() == [Action.FREE_REQUESTED]


def test_a_trace_without_events_stays_one() -> None:
    trace = layout(cpu_trace())

    assert len(trace.events) == 0
    assert trace.end is not None
    assert trace.end.reserved == 0
