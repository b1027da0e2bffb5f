"""The state before a trace is rebuilt from the state after it."""

from __future__ import annotations

import numpy as np
import pytest

from memprof.allocator import CachingAllocator, start_state
from memprof.allocator.state import state_of
from memprof.allocator.undo import beginning
from memprof.trace import Action, BlockState, Events, State, Tables, Trace

MIB = 1 << 20
Row = tuple[int, int, int]


class Recorder:
    """A model whose events are kept, as torch's recorder would."""

    def __init__(self) -> None:
        self.model = CachingAllocator()
        self.rows: list[Row] = []

    def alloc(self, size: int) -> int:
        block = self.model.malloc(size)
        assert block is not None
        self._take_log()
        self.rows.append((Action.ALLOC, block.address, size))
        return block.address

    def free(self, address: int) -> None:
        size = self.model.live[address].requested
        self.rows += [
            (Action.FREE_REQUESTED, address, size),
            (Action.FREE_COMPLETED, address, size),
        ]
        self.model.free(address)

    def empty_cache(self) -> None:
        self.model.empty_cache()
        self._take_log()

    def _take_log(self) -> None:
        self.rows += [event[:3] for event in self.model.log]
        self.model.log.clear()

    def trace_since(self, first: int) -> Trace:
        action, address, size = np.array(self.rows[first:], dtype=np.int64).reshape(-1, 3).T
        events = Events.build(length=len(action), action=action, address=address, size=size)
        return Trace("cuda:0", events, Tables(), end=state_of(self.model))


def spans(state: State) -> list[tuple[int, int, int]]:
    blocks = state.blocks
    return list(
        zip(blocks.address.tolist(), blocks.size.tolist(), blocks.state.tolist(), strict=True)
    )


def test_undoing_everything_leaves_nothing() -> None:
    recorder = Recorder()
    kept, freed = recorder.alloc(3 * MIB), recorder.alloc(5 * MIB)
    recorder.free(freed)
    recorder.empty_cache()

    state = start_state(recorder.trace_since(0))

    assert kept
    assert state.reserved == state.allocated == len(state.blocks) == 0


@pytest.mark.parametrize("seed", range(20))
def test_the_state_of_a_random_program_comes_back_at_any_moment(seed: int) -> None:
    rng = np.random.default_rng(seed)
    recorder, live = Recorder(), []
    first, before = 0, State()
    for step in range(600):
        if step == 300:
            first, before = len(recorder.rows), state_of(recorder.model)
        if live and rng.random() < 0.45:
            recorder.free(live.pop(int(rng.integers(len(live)))))
        elif rng.random() < 0.02:
            recorder.empty_cache()
        else:
            # Multiples of 2 MiB leave no remainders in the large pool.
            large = rng.random() < 0.5
            size = int(rng.integers(1, 12)) * 2 * MIB if large else int(rng.integers(1, MIB))
            live.append(recorder.alloc(size))

    state = start_state(recorder.trace_since(first))

    assert spans(state) == spans(before)
    assert state.segments.address.tolist() == before.segments.address.tolist()
    assert state.reserved == before.reserved


def test_a_gap_too_small_for_a_free_block_belongs_to_the_block_before_it() -> None:
    recorder = Recorder()
    address = recorder.alloc(19 * MIB + 512 * 1024)
    first = len(recorder.rows)
    recorder.free(address)

    assert spans(start_state(recorder.trace_since(first))) == [
        (address, 20 * MIB, BlockState.ACTIVE_ALLOCATED)
    ]


def test_an_allocation_behind_a_living_block_shows_where_that_ends() -> None:
    recorder = Recorder()
    hole = recorder.alloc(8 * MIB)
    wall = recorder.alloc(2 * MIB)
    recorder.free(hole)
    block = recorder.alloc(7 * MIB + 512 * 1024)  # half a MiB too small to be split off
    after = wall + 2 * MIB
    recorder.free(wall)
    first = len(recorder.rows)
    recorder.alloc(4 * MIB)
    recorder.free(block)

    state = start_state(recorder.trace_since(first))

    assert spans(state)[0] == (block, 8 * MIB, BlockState.ACTIVE_ALLOCATED)
    assert spans(state)[1] == (wall, 12 * MIB, BlockState.INACTIVE)
    assert after == block + 10 * MIB


def test_events_that_no_state_explains_are_counted() -> None:
    recorder = Recorder()
    recorder.free(recorder.alloc(MIB))
    recorder.rows.append((Action.ALLOC, 1 << 40, MIB))

    assert beginning(recorder.trace_since(0)).contradictions == 1


def test_a_block_that_waits_for_a_stream_at_the_start_is_pending_there() -> None:
    recorder = Recorder()
    address = recorder.alloc(MIB)
    recorder.free(address)
    first = len(recorder.rows) - 1

    state = start_state(recorder.trace_since(first))

    assert spans(state)[0] == (address, MIB, BlockState.ACTIVE_PENDING_FREE)
