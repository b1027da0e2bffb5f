"""Columns hold equal rows, tables share stacks, and a state sums its blocks."""

from __future__ import annotations

import numpy as np
import pytest

from memprof.trace import (
    NOT_RECORDED,
    Blocks,
    BlockState,
    Events,
    Frame,
    Segments,
    State,
    Tables,
)


def test_columns_that_are_left_out_are_filled_with_what_stands_for_missing() -> None:
    events = Events.build(2, address=[1, 2])

    assert events.time_us.tolist() == events.pool.tolist() == [NOT_RECORDED, NOT_RECORDED]
    assert events.size.tolist() == [0, 0]
    assert events.address.dtype == np.int64


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="differ in length"):
        Events.build(address=[1, 2], size=[1])


def test_a_value_that_does_not_fit_its_column_is_refused() -> None:
    with pytest.raises(OverflowError):
        Events.build(address=[1 << 63])


def test_parts_are_joined_in_order_and_no_part_gives_no_rows() -> None:
    one, two = Events.build(address=[1]), Events.build(address=[2, 3])

    assert Events.concatenate([one, two]).address.tolist() == [1, 2, 3]
    assert Events.concatenate([one]) is one
    assert len(Events.concatenate([])) == 0


def test_rows_are_taken_by_mask_slice_and_index() -> None:
    events = Events.build(address=[5, 6, 7], size=[1, 2, 3])

    assert events.take(events.size > 1).address.tolist() == [6, 7]
    assert events.take(slice(0, 1)).size.tolist() == [1]
    assert events.take(np.array([2, 0])).address.tolist() == [7, 5]


def test_columns_cannot_be_reassigned() -> None:
    with pytest.raises(AttributeError):
        Events.build().address = np.zeros(0)  # type: ignore[misc]


def test_a_stack_is_read_through_its_frames() -> None:
    outer, inner = Frame("main", "train.py", 3), Frame("forward", "model.py", 8)
    tables = Tables(frames=(outer, inner), stacks=((), (1, 0)))

    assert tables.stack(1) == (inner, outer)
    assert tables.stack(0) == ()


def test_a_state_counts_pending_blocks_as_active_and_not_as_allocated() -> None:
    states = [BlockState.ACTIVE_ALLOCATED, BlockState.ACTIVE_PENDING_FREE, BlockState.INACTIVE]
    state = State(
        segments=Segments.build(address=[0], size=[4096]),
        blocks=Blocks.build(size=[1024, 512, 2560], requested=[1000, 500, 0], state=states),
        unlisted=256,
    )

    assert state.allocated == 1024 + 256
    assert state.active == 1024 + 512 + 256
    assert state.reserved == 4096
    assert state.requested == 1000


def test_an_empty_state_holds_nothing() -> None:
    state = State()
    assert (state.allocated, state.active, state.reserved, state.requested) == (0, 0, 0, 0)
