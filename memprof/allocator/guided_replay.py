"""Replay of a recorded trace beside the model: each event is predicted, then made true.

The model says where an allocation goes before it learns where it went; a wrong answer is counted
and put right, so that it does not spoil the answers after it. What the program or the driver
decided (frees, when memory is given back, addresses of new segments) comes from the trace.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from memprof.allocator import expandable
from memprof.allocator.explain_releases import ReleaseRun, explain, free_block_at
from memprof.allocator.infer_first_state import learn_order, learn_remainder, least_remainder
from memprof.allocator.infer_pools import PoolFinder
from memprof.allocator.model import CachingAllocator
from memprof.allocator.outcome import (
    Outcome,
    OutOfMemory,
    PeakWatch,
    Stacks,
    out_of_memory,
)
from memprof.allocator.pools import ADDRESS_BITS, Arena, Block
from memprof.allocator.rounding import SMALL_SIZE, segment_size
from memprof.allocator.settings import AllocatorSettings
from memprof.allocator.state import Origins, restore, state_of
from memprof.allocator.undo import AT_ONCE, Beginning, calls, free_actions
from memprof.allocator.versions import TieBreak
from memprof.trace import NOT_RECORDED, Action, State, Trace

__all__ = ["Doubt", "Guide", "Refusal"]

_ALLOC, _SEGMENT_ALLOC, _MAP, _OOM = (
    int(Action.ALLOC),
    int(Action.SEGMENT_ALLOC),
    int(Action.SEGMENT_MAP),
    int(Action.OOM),
)
_GIVE_UP = 5_000
"""Wrong answers before a recording that contradicts itself is only counted through."""

_RELEASES = (int(Action.SEGMENT_FREE), int(Action.SEGMENT_UNMAP))


class Doubt(enum.Enum):
    """Why an allocation does not count as placed exactly."""

    WRONG = "the model puts it elsewhere"
    START_SIZE = "only this event shows how large a block was that was live at the start"
    START_ORDER = "only this event shows which of two segments was obtained first"
    VIEW = "how many addresses an expandable segment reserves depends on the card, not recorded"
    CUT = "the recording begins between new memory and the allocation that it was for"
    POOL = "the recording does not say which pool it came from"
    HOLES = "the recording contradicts itself: events are missing or out of order"


@dataclass(frozen=True, slots=True, eq=False)
class Refusal:
    """A request that failed, as the replay came by it."""

    event: int
    before: State
    """What the allocator held when it was asked."""
    outcome: Outcome
    """What the recording had come to when it had failed."""
    limits: tuple[int, ...]
    """`Guide.refused_at` up to there."""


class Guide:
    """The model, led along a trace from its start."""

    def __init__(
        self,
        trace: Trace,
        begin: Beginning,
        settings: AllocatorSettings,
        tie_break: TieBreak,
        ties: Mapping[int, int] | None = None,
    ) -> None:
        """``ties`` as in `restore`."""
        # Searches are counted only while a fraction is set; which one is not recorded.
        counting = replace(settings, memory_fraction=1.0) if settings.gc_threshold else settings
        self.allocator = CachingAllocator(counting, tie_break=tie_break)
        restore(self.allocator, begin.state, begin.first_pages, ties)
        self.row = 0
        self.watch = PeakWatch(self.allocator)
        self.oom: OutOfMemory | None = None
        """The first request that failed in the recording."""
        self.predicted: list[int] = []
        """Address predicted for each ``ALLOC`` so far; `NOT_RECORDED` where the model had none."""
        self.block_sizes: list[int] = []
        """Bytes of the block that each got; 0 where the model could not follow."""
        self.doubts: dict[int, Doubt] = {}
        self.new_segments = self.new_segments_predicted = 0
        self.releases: list[ReleaseRun] = []
        self.learned_ties: dict[int, int] = {}
        self.refused_at: list[int] = []
        """Bytes that the allocator would have held had it not been refused memory, each time."""
        self.last_refusal: Refusal | None = None
        """The last request of the trace that failed, once the model is past it."""
        self.switches: list[int] = []
        """Events at which expandable segments were found to be switched on or off."""
        self._from_midst = len(begin.state.blocks) > 0
        self._holes = begin.contradictions > 0
        self._assumed_addresses = set(begin.state.blocks.address[begin.assumed].tolist())
        self._start_ties = sorted({b.tie for b in self._all_blocks()})
        events = trace.events
        self._requests: list[int] = np.flatnonzero(
            (events.action == _ALLOC) | (events.action == _OOM)
        ).tolist()
        failed = np.flatnonzero(events.action == _OOM)
        self._was_full = len(failed) > 0
        self._last_failed = int(failed[-1]) if len(failed) else NOT_RECORDED
        self._origins = Origins(events, begin.state)
        self._queue: list[tuple[int, int, int, int]] = []  # action, address, size, pool
        self._run_end = 0
        self._stacks = Stacks(events.stack, begin.state.blocks.stack)
        self._actions, self._addresses = events.action.tolist(), events.address.tolist()
        self._completions, self._requested = free_actions(trace)
        self._calls = calls(events, self._completions, self._requested)
        self._sizes, self._streams = events.size.tolist(), events.stream.tolist()
        self._finder = PoolFinder(trace, begin, self.allocator)
        self.pools = self._finder.pools

    def _all_blocks(self) -> list[Block]:
        free = [block for arena in self.allocator.arenas() for block in arena.blocks]
        return [*free, *self.allocator.live.values()]

    def advance(self, to: int | None = None) -> None:
        """Lead the model up to event ``to`` (excluded; to the end where left out)."""
        # The loop of every replay: names are local because attributes cost a third of its time.
        stop = len(self._actions) if to is None else to
        actions, addresses, sizes = self._calls, self._addresses, self._sizes
        streams, pools, queue = self._streams, self.pools, self._queue
        predicted, block_sizes = self.predicted, self.block_sizes
        allocator, completed, requested = self.allocator, self._completions, self._requested
        malloc, free = allocator.malloc_cached, allocator.complete_free
        request_free = allocator.request_free
        for row in range(self.row, stop):
            action = actions[row]
            if action == _ALLOC:
                pool = pools[row]
                if pool < 0:
                    pool = pools[row] = self._pool_at(row)
                block = malloc(sizes[row], streams[row], pool, row)
                if block is not None and block.address == addresses[row] and not queue:
                    predicted.append(block.address)
                    block_sizes.append(block.size)
                else:
                    predicted.append(self._settle(row, pool, block))
            elif action == completed:
                free(addresses[row])
            elif action == AT_ONCE:
                continue
            elif action == requested:
                request_free(addresses[row])
            elif action in (_SEGMENT_ALLOC, _MAP):
                queue.append((action, addresses[row], sizes[row], pools[row]))
            elif action in _RELEASES:
                if row >= self._run_end:
                    self._release(row)
            elif action == _OOM:
                self._refuse(row)
        self.row = max(stop, self.row)
        allocator.log.clear()

    def _settle(self, row: int, pool: int, block: Block | None) -> int:
        """An allocation that the cache did not serve as recorded; the address predicted for it."""
        address: int = self._addresses[row]
        arena, size = self._request(row, pool)
        if block is not None and self._tried_again(row, arena, size):
            self._take_back(block)
            block = None
        if block is None and (self._queue or arena.expandable):
            block = self._new_memory(row, arena, size) or self._new_view(row, arena, size)
            if block is not None and block.address == address:
                self.block_sizes.append(block.size)
                self.watch.note(row, self.allocator)
                return address
        predicted = NOT_RECORDED if block is None else block.address
        choice = None if block is None else self._take_back(block)
        self._add_recorded(arena)
        actual = None if self.is_lost else free_block_at(self.allocator, address, size)
        self.doubts[row] = self._doubt(row, choice, actual, size)
        if actual is not None:
            block = self.allocator.carve(actual, address)
            block = self.allocator.take(block, size, self._sizes[row], row)
        self.block_sizes.append(0 if actual is None or block is None else block.size)
        self.watch.note(row, self.allocator)
        return predicted

    def _take_back(self, block: Block) -> Block | None:
        """Undo a placement; the free block that it was cut from."""
        allocator = self.allocator
        rest = block.next
        cut = allocator.counts_blocks and block.tie >> ADDRESS_BITS == allocator.counter
        tie = rest.tie if cut and rest is not None else None
        choice = allocator.complete_free(block.address)
        if tie is not None and choice is not None:  # merging kept the newer of the two numbers
            choice.arena.remove(choice)
            choice.tie = tie
            choice.arena.insert(choice)
        return choice

    def _tried_again(self, row: int, arena: Arena, size: int) -> bool:
        """Whether the request missed the cache before memory was given back for it.

        What waited for a stream was freed then too; the allocator does not look at it again.
        """
        last = self.releases[-1] if self.releases else None
        if last is None or last.last != row - len(self._queue):
            return False
        if self._queue or not arena.expandable:
            return bool(self._queue)
        # Room that the second try finds without mapping anything leaves no other trace.
        address: int = self._addresses[row]
        return expandable.room_at(arena, size) == address

    def _pool_at(self, row: int) -> int:
        address = self._addresses[row]
        for _, start, size, pool in self._queue:
            if start <= address < start + size:
                return max(pool, 0)
        return self._finder.pool_at(address)

    def _request(self, row: int, pool: int) -> tuple[Arena, int]:
        size = self._sizes[row]
        size = size if self._actions[row] == _OOM else self.allocator.rounded(size)
        return self.allocator.arena(pool, self._streams[row], size <= SMALL_SIZE), size

    def _doubt(self, row: int, choice: Block | None, actual: Block | None, size: int) -> Doubt:
        """Why the model missed; what the miss teaches is put right."""
        if self._holes:
            return Doubt.HOLES
        if row in self._finder.open:
            return Doubt.POOL
        # Right after the cut: what the first allocation was cut from looks free, and was not.
        no_excuse = Doubt.CUT if self._from_midst and not self.predicted else Doubt.WRONG
        if choice is None or actual is None:
            return no_excuse if actual is not None else Doubt.WRONG
        rest = least_remainder(choice, size)
        if learn_remainder(self.allocator, self._assumed_addresses, choice, actual, rest):
            return Doubt.START_SIZE
        tie = learn_order(self.allocator, self._start_ties, choice, actual)
        if tie is None:
            return no_excuse
        self.learned_ties[_base(actual)] = tie
        return Doubt.START_ORDER

    # -- new memory ----------------------------------------------------------------------------

    def _new_memory(self, row: int, arena: Arena, size: int) -> Block | None:
        """A block out of memory that the trace obtained here, if the model asks for just that.

        Expandable segments may need none: what best fit passed over can be found by address.
        """
        allocator, queue = self.allocator, self._queue
        if queue:
            self._follow_switch(row, arena, mapped=queue[0][0] == _MAP)
        if arena.expandable:
            plan = expandable.mapping_plan(arena, size)
            if len(plan) != len(queue) or not self._is_planned(plan):
                return None
            new_view = bool(plan) and plan[0][0] is None
            allocator.driver.expect(queue[0][1] if new_view else None)
            block = expandable.allocate(allocator, arena, size, row)
        else:
            _, address, driver_size, _ = queue[0]
            if len(queue) > 1 or driver_size != segment_size(size, allocator.settings):
                return None
            block = allocator.add_segment(arena, address, driver_size, row)
        self._count_queue(predicted=len(queue))
        return None if block is None else allocator.take(block, size, self._sizes[row], row)

    def _new_view(self, row: int, arena: Arena, size: int) -> Block | None:
        """The same where the trace maps in a new reservation: the old one was at its end."""
        tails = [block for block in arena.unmapped if block.next is None]
        mapped = bool(self._queue) and self._queue[0][0] == _MAP
        if not mapped or not tails or self._in_view(arena, self._queue[0][1]):
            return None
        for tail in tails:
            arena.unmapped.remove(tail)
            if tail.prev is not None:
                tail.prev.next = None
        self.doubts[row] = Doubt.VIEW
        return self._new_memory(row, arena, size)

    def _in_view(self, arena: Arena, address: int) -> bool:
        return any(block.address == address for block in arena.unmapped)

    def _is_planned(self, plan: list[tuple[int | None, int]]) -> bool:
        """Whether the recorded maps are the first ones of the plan."""
        return len(plan) >= len(self._queue) and all(
            size == planned_size and place in (None, address)
            for (place, planned_size), (_, address, size, _) in zip(plan, self._queue, strict=False)
        )

    def _follow_switch(self, row: int, arena: Arena, *, mapped: bool) -> None:
        """Expandable segments were switched on or off, or do not hold for this pool."""
        if mapped == arena.expandable:
            return
        allocator = self.allocator
        if arena.pool:
            change = allocator.fixed_pools.discard if mapped else allocator.fixed_pools.add
            change(arena.pool)
            allocator.apply(allocator.settings)
        if mapped != arena.expandable:
            self.switches.append(row)
            allocator.apply(replace(allocator.settings, expandable_segments=mapped))

    def _count_queue(self, *, predicted: int) -> None:
        self.new_segments += len(self._queue)
        self.new_segments_predicted += predicted
        self._queue.clear()

    def _add_recorded(self, arena: Arena, predicted: int = 0) -> None:
        """Put recorded new memory that the model did not ask for among the free blocks."""
        for action, address, size, _ in self._queue:
            if action == _MAP:
                self._map(arena, address, size)
            else:
                arena.insert(self.allocator.add_segment(arena, address, size))
        self._count_queue(predicted=predicted)

    def _map(self, arena: Arena, address: int, size: int) -> None:
        block = next((b for b in arena.unmapped if b.address == address), None)
        if block is None:
            self.allocator.driver.expect(address)
            block = expandable.reserve(self.allocator, arena, NOT_RECORDED)
        expandable.map_pages(self.allocator, block, size)

    def _map_in_vain(self, row: int) -> None:
        """Memory was mapped for a request that the card then could not serve in full."""
        waiting = self._waiting(row)
        if self._queue and waiting is not None:
            planned = self._is_planned(expandable.mapping_plan(*waiting))
            self._add_recorded(waiting[0], len(self._queue) if planned else 0)

    def _refuse(self, row: int) -> None:
        # The state is taken for one request only: a search for the batch size fails many times.
        before = state_of(self.allocator, self._origins) if row == self._last_failed else None
        self._map_in_vain(row)
        if self.oom is None:
            self.oom = out_of_memory(self.allocator, row, self._sizes[row], self._stacks)
        waiting, reserved = self._waiting(row), self.allocator.reserved
        if waiting is not None:  # the event itself
            # What the driver says is free counts, unless the request was refused for a fraction.
            nbytes = self._size_wanted(*waiting)
            self.refused_at.append(reserved + min(self._addresses[row] + 1, nbytes))
        if before is not None:
            self.last_refusal = Refusal(row, before, self._outcome(row + 1), tuple(self.refused_at))

    def _waiting(self, row: int) -> tuple[Arena, int] | None:
        """The request that comes next, from event ``row`` on."""
        index = bisect_left(self._requests, row)
        if index == len(self._requests):
            return None
        later = self._requests[index]
        pool = self.pools[later]
        return self._request(later, self._pool_at(later) if pool < 0 else pool)

    # -- memory given back ---------------------------------------------------------------------

    def _release(self, row: int) -> None:
        actions, last = self._actions, row
        while last < len(actions) and actions[last] in _RELEASES:
            last += 1
        self._map_in_vain(last)
        pieces = list(
            zip(actions[row:last], self._addresses[row:last], self._sizes[row:last], strict=True)
        )
        waiting, reserved = self._waiting(last), self.allocator.reserved
        why = explain(self.allocator, pieces, waiting, from_start=self._from_midst)
        retry = self._served_next(row, last)
        if retry and waiting is not None:
            self.refused_at.append(reserved + self._size_wanted(*waiting))
        run = ReleaseRun(row, last, why.predicted, why.causes, why.pools, retry)
        self.releases.append(run)
        self._run_end = last

    @property
    def is_lost(self) -> bool:
        """Whether most of many answers were wrong: then nothing is put right any more."""
        return len(self.doubts) > _GIVE_UP and 2 * len(self.doubts) > len(self.predicted)

    @property
    def misses(self) -> int:
        """Events that were not predicted, of every kind."""
        released = sum(run.last - run.first - run.predicted for run in self.releases)
        return len(self.doubts) + released + self.new_segments - self.new_segments_predicted

    @property
    def outcome(self) -> Outcome:
        """What the recording came to, as far as the model was led along it."""
        return self._outcome(self.row)

    def _outcome(self, stop: int) -> Outcome:
        """The figures up to event ``stop`` (excluded); requests that failed gave up the cache."""
        failed: int = sum(action == _OOM for action in self._actions[:stop])
        retries = [run for run in self.releases if run.retry and self._actions[run.last] != _OOM]
        outcome = self.watch.outcome(self.allocator, self.oom)
        return replace(outcome, retries=len(retries) + failed)

    def _size_wanted(self, arena: Arena, size: int) -> int:
        """Bytes that a request asks of the driver when nothing cached fits."""
        if arena.expandable:
            return sum(mapped for _, mapped in expandable.mapping_plan(arena, size))
        return segment_size(size, self.allocator.settings)

    def _served_next(self, first: int, last: int) -> bool:
        """Whether memory was given back for a request: the next thing is new memory, or none.

        The recorder gives both the stack of that request. Where it kept no stacks, memory counts
        as asked back by the program, unless the recording shows that the card was full once.
        """
        if last == len(self._actions) or self._actions[last] not in (_SEGMENT_ALLOC, _MAP, _OOM):
            return False
        stack = self._stacks.of(first)
        return stack == self._stacks.of(last) and (stack != 0 or self._was_full)


def _base(block: Block) -> int:
    while block.prev is not None:
        block = block.prev
    return block.address
