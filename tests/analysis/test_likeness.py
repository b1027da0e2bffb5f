"""Which recorded step is like a failure between windows, against what the blocks really were."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from memprof.allocator import segment_map
from memprof.analysis.likeness import likeness
from memprof.analysis.telling import told_by
from memprof.testing import TraceBuilder
from memprof.trace import (
    Action,
    BlockState,
    Category,
    Events,
    Frame,
    Phase,
    State,
    Trace,
)

MIB = 1 << 20


def line(number: int) -> tuple[Frame, ...]:
    return (Frame("forward", "/home/me/train.py", number), Frame("main", "/home/me/train.py", 90))


def step(builder: TraceBuilder, number: int, *, kept: bool = False) -> None:
    """Two layers' activations, a moment's memory, logits; all freed but what is kept."""
    builder.label(step=number, phase=Phase.FORWARD, module="Net.first")
    builder.alloc(6 * MIB, f"a{number}", stack=line(10), category=Category.ACTIVATION)
    builder.alloc(4 * MIB, f"moment{number}", stack=line(11), category=Category.TEMPORARY)
    builder.label(step=number, phase=Phase.FORWARD, module="Net.second")
    builder.alloc(8 * MIB, f"b{number}", stack=line(20), category=Category.ACTIVATION)
    builder.free(f"moment{number}")
    builder.label(step=number, phase=Phase.FORWARD, module="Net")
    builder.alloc(12 * MIB, f"logits{number}", stack=line(30), category=Category.ACTIVATION)
    if kept:
        builder.alloc(3 * MIB, f"kept{number}", stack=line(40))
    builder.label(step=number, phase=Phase.BACKWARD)
    for name in ("logits", "b", "a"):
        builder.free(f"{name}{number}")


def recorded_and_failed(whole: Trace, steps: int, failed_in: int) -> tuple[list[Trace], State]:
    """The first steps as a window, and the logits of a later one as a failure between windows.

    Beside them what its blocks really were.
    """
    events = whole.events
    labels = np.array([label.step for label in whole.tables.labels])[events.label]
    end = int(np.flatnonzero(labels <= steps)[-1]) + 1
    window = replace(whole, events=events.take(slice(0, end)), end=segment_map(whole, end))
    logits = (events.size == 12 * MIB) & (events.action == Action.ALLOC) & (labels == failed_in)
    place = int(np.flatnonzero(logits)[0])
    # Before the segment that torch obtained for it, if it did.
    before = place - int(events.action[place - 1] == Action.SEGMENT_ALLOC)
    truth = segment_map(whole, before)
    blank = np.zeros(len(truth.blocks), np.int32)
    parameter = np.where(truth.blocks.category == Category.PARAMETER, truth.blocks.category, 0)
    blocks = replace(truth.blocks, stack=blank, label=blank, category=parameter)
    asked = events.take(slice(place, place + 1))
    request: Events = replace(asked, action=np.array([int(Action.OOM)]), label=np.array([0]))
    end_state = State(truth.segments, blocks)
    return [window, replace(whole, events=request, start=None, end=end_state)], truth


def names(trace: Trace, state: State) -> list[tuple[int, int, str, int]]:
    """Address, line, module and category of every block in use."""
    blocks = state.blocks
    rows = np.flatnonzero(blocks.state == BlockState.ACTIVE_ALLOCATED).tolist()
    lines = [trace.stack(int(blocks.stack[row])) for row in rows]
    return [
        (
            int(blocks.address[row]),
            frames[0].line if frames else 0,
            trace.label(int(blocks.label[row])).module,
            int(blocks.category[row]),
        )
        for row, frames in zip(rows, lines, strict=True)
    ]


@pytest.mark.parametrize("moved", [False, True], ids=["where they were", "elsewhere"])
def test_every_block_is_told_as_what_it_really_was(moved):
    builder = TraceBuilder()
    builder.existing(10 * MIB, "weights", category=Category.PARAMETER)
    for number in (1, 2):
        step(builder, number)
    if moved:  # what takes the place of the first activations of all later steps
        builder.label(step=3).alloc(6 * MIB, "new", stack=line(50), category=Category.PARAMETER)
    for number in (3, 4):
        step(builder, number)
    whole = builder.build()
    traces, truth = recorded_and_failed(whole, steps=2, failed_in=4)
    alike = likeness(traces, 1, 0)
    assert alike is not None
    assert (alike.window, alike.step, alike.share, alike.asked) == (0, 2, 1.0, 12 * MIB)
    told = told_by(alike, traces[1], 0)
    new = {address for address, number, _, _ in names(whole, truth) if number == 50}
    assert len(new) == moved
    assert [n for n in names(told, told.end) if n[0] not in new] == [
        n for n in names(whole, truth) if n[0] not in new
    ]
    request = told.label(int(told.events.label[0]))
    assert (request.phase, request.module) == (Phase.FORWARD, "Net")


def test_what_a_line_leaves_behind_is_told_also_for_the_steps_that_nobody_saw():
    builder = TraceBuilder()
    for number in range(1, 9):
        step(builder, number, kept=True)
    traces, truth = recorded_and_failed(builder.build(), steps=3, failed_in=8)
    alike = likeness(traces, 1, 0)
    assert alike is not None
    told = told_by(alike, traces[1], 0)
    kept = [
        told.label(int(label)).step
        for label in told.end.blocks.label[told.end.blocks.requested == 3 * MIB]
    ]
    assert len(kept) == 7
    assert sorted(kept) == [-1, -1, -1, -1, -1, 1, 2]
    assert names(told, told.end)[-1][1] == names(told, truth)[-1][1]


def test_a_step_of_which_little_is_found_again_is_not_taken():
    builder = TraceBuilder()
    for number in (1, 2):
        step(builder, number)
    builder.label(step=3).alloc(200 * MIB, "another", stack=line(60))
    step(builder, 3)
    traces, _ = recorded_and_failed(builder.build(), steps=2, failed_in=3)
    assert likeness(traces, 1, 0) is None


def test_a_window_that_never_came_to_the_line_is_not_taken():
    builder = TraceBuilder()
    step(builder, 1)
    step(builder, 2)
    traces, _ = recorded_and_failed(builder.build(), steps=1, failed_in=2)
    elsewhere = replace(traces[1].tables, frames=[Frame("f", "/home/me/other.py", 1)] * 90)
    assert likeness([traces[0], replace(traces[1], tables=elsewhere)], 1, 0) is None


def test_a_state_whose_blocks_lie_in_no_segment_is_like_nothing():
    builder = TraceBuilder()
    for number in (1, 2, 3):
        step(builder, number)
    traces, truth = recorded_and_failed(builder.build(), steps=2, failed_in=3)
    assert likeness(traces, 1, 0) is not None
    nowhere = replace(truth.blocks, segment=np.full(len(truth.blocks), -1))
    for end in (State(), State(blocks=nowhere)):
        assert likeness([traces[0], replace(traces[1], end=end)], 1, 0) is None


def test_changes_of_the_recorded_step_become_changes_of_the_blocks():
    builder = TraceBuilder()
    for number in (1, 2, 3):
        step(builder, number)
    traces, truth = recorded_and_failed(builder.build(), steps=2, failed_in=3)
    alike = likeness(traces, 1, 0)
    assert alike is not None
    lives = alike.moment.seen.line.lives
    rows = np.flatnonzero(alike.moment.alive & (lives.size == 8 * MIB))
    assert (
        alike.without(rows).gone.tolist()
        == truth.blocks.address[
            (truth.blocks.size == 8 * MIB) & (truth.blocks.state == BlockState.ACTIVE_ALLOCATED)
        ].tolist()
    )
