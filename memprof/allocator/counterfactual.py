"""The same program on another allocator: other settings, another card, other lifetimes.

What the program did (allocations, frees, calls of ``empty_cache``, the moments at which deferred
frees completed) is taken from a recorded trace; what the allocator does about it is the model's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from memprof.allocator.driver import Driver
from memprof.allocator.guided_replay import Guide
from memprof.allocator.model import CachingAllocator
from memprof.allocator.outcome import Outcome, OutOfMemory, PeakWatch, Stacks, out_of_memory
from memprof.allocator.pools import ALLOCATED, FREE, ArenaKey, Block
from memprof.allocator.replay_check import inferred_settings, retold
from memprof.allocator.settings import NO_LIMIT, AllocatorSettings
from memprof.allocator.state import restore, start_owner
from memprof.allocator.undo import AT_ONCE, Beginning, calls, free_actions
from memprof.allocator.versions import TieBreak
from memprof.trace import NOT_RECORDED, Action, BlockState, Events, State, Trace

__all__ = [
    "NOTHING_CHANGED",
    "Changes",
    "FailedRequest",
    "ReplayedTrace",
    "Workload",
    "play",
    "replayed_trace",
    "workload_of",
]

_OF_THE_START = start_owner(0)
"""Owners from here downwards are blocks that were live when the trace began."""

_ALLOC, _OOM = int(Action.ALLOC), int(Action.OOM)


def _no_rows() -> npt.NDArray[np.int64]:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
    """What the program would have done otherwise."""

    never: npt.NDArray[np.int64] = field(default_factory=_no_rows)
    """``ALLOC`` events that would not have been."""
    freed: npt.NDArray[np.int64] = field(default_factory=_no_rows)
    """``ALLOC`` events whose memory would have been freed earlier than it was, …"""
    freed_after: npt.NDArray[np.int64] = field(default_factory=_no_rows)
    """… each right after this event."""
    freed_initial: npt.NDArray[np.int64] = field(default_factory=_no_rows)
    """Addresses of blocks that were live when the trace began and would have been freed, …"""
    freed_initial_after: npt.NDArray[np.int64] = field(default_factory=_no_rows)
    """… each right after this event; where left out (or -1), before the trace began."""

    def __bool__(self) -> bool:
        return bool(len(self.never) or len(self.freed) or len(self.freed_initial))


NOTHING_CHANGED = Changes()


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """A trace as the calls of a program; small enough to send to another process."""

    events: Events
    pools: npt.NDArray[np.int64]
    """The pool of every event, told or found out."""
    start: State
    first_pages: dict[ArenaKey, int]
    settings: AllocatorSettings
    tie_break: TieBreak
    free_actions: tuple[int, int | None]
    """The action that ends a block's use, and the one that announces it."""
    emptied: dict[int, tuple[int, ...]]
    """Events at which the program emptied the cache, with the private pools that were idle."""
    recorded: Outcome
    """What the recording itself came to."""
    capacity: int
    """Bytes that the recording's allocator could hold, as its refusals tell; else no limit."""


def workload_of(trace: Trace, settings: AllocatorSettings | None = None) -> Workload:
    """The program behind a recorded trace; replays the trace once."""
    settings = settings or inferred_settings(trace)
    begin, rule, guide = retold(trace, settings)
    return _workload(trace, begin, settings, rule, guide)


@dataclass(frozen=True, slots=True, eq=False)
class FailedRequest:
    """The last request of a trace that failed, as the replay came by it."""

    event: int
    before: State
    """What the allocator held when it was asked."""
    workload: Workload
    """The program until it failed."""


@dataclass(frozen=True, slots=True, eq=False)
class ReplayedTrace:
    """A trace replayed once, with all that is asked of that replay."""

    trace: Trace
    """It, with the state it began in and the bytes that each allocation took.

    Sizes that only a replay can tell (blocks with a remainder too small to split off) are in
    ``events.block_size``; 0 stays where the model could not follow the recording.
    """
    workload: Workload
    failed: FailedRequest | None
    """None where no request failed."""


def replayed_trace(trace_of_file: Trace) -> ReplayedTrace:
    """Replay a trace under the settings it ran with: its sizes, its program, its last failure."""
    settings = inferred_settings(trace_of_file)
    begin, rule, guide = retold(trace_of_file, settings)
    sizes = np.zeros(len(trace_of_file.events), dtype=np.int64)
    sizes[trace_of_file.events.action == Action.ALLOC] = guide.block_sizes
    trace = replace(
        trace_of_file, start=begin.state, events=replace(trace_of_file.events, block_size=sizes)
    )
    workload = _workload(trace, begin, settings, rule, guide)
    last = guide.last_refusal
    if last is None:
        return ReplayedTrace(trace, workload, None)
    stop = last.event + 1
    until = replace(
        workload,
        events=trace.events.take(slice(0, stop)),
        pools=workload.pools[:stop],
        emptied={row: pools for row, pools in workload.emptied.items() if row < stop},
        recorded=last.outcome,
        capacity=_capacity(last.limits, last.outcome),
    )
    return ReplayedTrace(trace, workload, FailedRequest(last.event, last.before, until))


def _workload(
    trace: Trace, begin: Beginning, settings: AllocatorSettings, rule: TieBreak, guide: Guide
) -> Workload:
    return Workload(
        events=trace.events,
        pools=np.array(guide.pools, dtype=np.int64),
        start=begin.state,
        first_pages=begin.first_pages,
        settings=settings,
        tie_break=rule,
        free_actions=free_actions(trace),
        emptied={run.first: run.pools for run in guide.releases if not run.retry},
        recorded=guide.outcome,
        capacity=_capacity(guide.refused_at, guide.outcome),
    )


def _capacity(refused_at: Sequence[int], first_outcome: Outcome) -> int:
    """Bytes that an allocator could hold which was refused those; no limit where none were."""
    return max(min(refused_at) - 1, first_outcome.peak_reserved) if refused_at else NO_LIMIT


def play(
    workload: Workload,
    settings: AllocatorSettings | None = None,
    *,
    capacity: int | None = None,
    changes: Changes = NOTHING_CHANGED,
    afresh: bool = False,
) -> Outcome:
    """The program on the modelled allocator.

    Args:
        workload: what happened.
        settings: those of the recording where left out.
        capacity: bytes that the card has for this process, under the fraction that the recording's
            settings name; what the recording's refusals tell where left out, else no limit.
        changes: what the program would have done otherwise.
        afresh: lay out anew what was live at the start, without the cache that it came with;
            always so where these settings or this card could not have led to the recorded start.

    Returns:
        Its outcome; where memory ran out, up to there. A request that failed in the recording is
        tried, and given back at once where it now succeeds: what the program would have done with
        it is not known.
    """
    limit = workload.capacity if capacity is None else capacity
    return _Player(workload, settings or workload.settings, limit, changes, afresh).run()


class _Player:
    """One counterfactual replay."""

    def __init__(
        self,
        workload: Workload,
        settings: AllocatorSettings,
        capacity: int,
        changes: Changes,
        afresh: bool,
    ) -> None:
        self.workload, self.settings, self.capacity = workload, settings, capacity
        self.changes = changes
        self.actions = calls(workload.events, *workload.free_actions)
        self.notes: list[str] = []
        self.oom: OutOfMemory | None = None
        self.stacks = Stacks(workload.events.stack, workload.start.blocks.stack)
        at_once = (
            changes.freed_initial_after < 0 if len(changes.freed_initial_after) else slice(None)
        )
        self.freed_initial = set(changes.freed_initial[at_once].tolist())
        self.live: dict[int, Block] = {}
        """Blocks by the address that the recording knows them under."""
        self.allocator = self._start(afresh)
        self.watch = PeakWatch(self.allocator)
        if not len(workload.events):
            self.notes.append(
                "the recording is a state without events: only what is live was laid out"
            )
        if settings.gc_threshold and settings.memory_fraction is None:
            self.notes.append(
                "garbage_collection_threshold has no effect without per_process_memory_fraction"
            )

    def _new_allocator(self) -> CachingAllocator:
        driver = Driver(self.capacity)
        return CachingAllocator(
            self.settings, tie_break=self.workload.tie_break, driver=driver, device_total=self._card
        )

    @property
    def _card(self) -> int:
        """The device that a fraction is a share of: the capacity is the recorded share of it."""
        share = self.workload.settings.memory_fraction or 1.0
        return self.capacity if share == 1.0 else int(self.capacity / share) + 2  # never below it

    def _start(self, afresh: bool) -> CachingAllocator:
        """The allocator as it would have been when the trace began."""
        allocator = None if afresh else self._as_recorded()
        if allocator is None:
            allocator = self._laid_out_afresh()
            if len(self.workload.start.blocks):
                self.notes.append(
                    "what was live when the trace began was laid out afresh, without its cache"
                )
        allocator.log.clear()
        allocator.device_allocs = allocator.device_frees = allocator.retries = 0
        return allocator

    def _as_recorded(self) -> CachingAllocator | None:
        """The start as it was; None where these settings or this card would not have led to it."""
        first_settings, settings, workload = self.workload.settings, self.settings, self.workload
        if (first_settings.expandable_segments, first_settings.large_segment_size) != (
            settings.expandable_segments,
            settings.large_segment_size,
        ):
            return None
        allocator = self._new_allocator()
        restore(allocator, workload.start, workload.first_pages)
        self.live = dict(allocator.live)
        for address in self.freed_initial & set(self.live):
            allocator.complete_free(address)
            del self.live[address]
        if allocator.reserved > self.capacity:
            allocator.empty_cache()
        allocator.peak_reserved, allocator.peak_allocated = allocator.reserved, allocator.allocated
        return None if allocator.reserved > self.capacity else allocator

    def _laid_out_afresh(self) -> CachingAllocator:
        allocator, start = self._new_allocator(), self.workload.start
        blocks, segments = start.blocks, start.segments
        self.live = {}
        for row in np.flatnonzero(blocks.state != BlockState.INACTIVE).tolist():
            address, segment = int(blocks.address[row]), int(blocks.segment[row])
            if address in self.freed_initial:
                continue
            stream = int(segments.stream[segment]) if segment >= 0 else 0
            pool = max(int(segments.pool[segment]), 0) if segment >= 0 else 0
            size = int(blocks.requested[row]) or int(blocks.size[row])
            block = allocator.malloc(size, stream, pool, start_owner(row))
            if block is None:
                size = allocator.rounded(size)
                self.oom = out_of_memory(allocator, NOT_RECORDED, size, self.stacks)
                break
            self.live[address] = block
            if blocks.state[row] == BlockState.ACTIVE_PENDING_FREE:
                allocator.request_free(block.address)
        return allocator

    def run(self) -> Outcome:
        """Play the program to its end, or to where memory runs out."""
        if self.oom is None:
            early = self._early_frees()
            stops = [
                *sorted(early.keys() | self.workload.emptied.keys()),
                len(self.workload.events),
            ]
            row = 0
            for stop in stops:
                row = self._play(row, stop)
                if self.oom is not None:
                    break
                for address, owner in early.get(stop, ()):
                    self._free_early(address, owner)
                if stop in self.workload.emptied:
                    self.allocator.freeable_pools = set(self.workload.emptied[stop])
                    self.allocator.empty_cache()
        return self.watch.outcome(self.allocator, self.oom, tuple(self.notes))

    def _early_frees(self) -> dict[int, list[tuple[int, int]]]:
        """Before which event to free which address, and the allocation that must hold it."""
        changes, early = self.changes, dict[int, list[tuple[int, int]]]()
        addresses = self.workload.events.address[changes.freed].tolist()
        rows, after = changes.freed.tolist(), changes.freed_after.tolist()
        for row, address, event in zip(rows, addresses, after, strict=True):
            early.setdefault(max(event, row) + 1, []).append((address, row))
        for address, event in zip(
            changes.freed_initial.tolist(), changes.freed_initial_after.tolist(), strict=False
        ):
            if event >= 0:
                early.setdefault(event + 1, []).append((address, _OF_THE_START))
        return early

    def _free_early(self, address: int, owner: int) -> None:
        block = self.live.get(address)
        of_the_start = block is not None and owner == _OF_THE_START and block.owner <= _OF_THE_START
        if block is not None and (block.owner == owner or of_the_start):
            del self.live[address]
            self.allocator.complete_free(block.address)

    def _play(self, first: int, stop: int) -> int:
        """Play the events from ``first`` up to ``stop`` (excluded)."""
        # The loop of every what-if: names are local because attributes cost a third of its time.
        events, pools = self.workload.events, self.workload.pools
        actions, addresses = self.actions[first:stop], events.address[first:stop].tolist()
        sizes, streams = events.size[first:stop].tolist(), events.stream[first:stop].tolist()
        columns = zip(actions, addresses, sizes, streams, pools[first:stop].tolist(), strict=True)
        allocator, live, never = self.allocator, self.live, set(self.changes.never.tolist())
        malloc, free, log = allocator.malloc, allocator.complete_free, allocator.log
        request_free, live_blocks = allocator.request_free, allocator.live
        completed, requested = self.workload.free_actions
        for row, (action, address, size, stream, pool) in enumerate(columns, first):
            if action == _ALLOC:
                if row in never:
                    live.pop(address, None)
                    continue
                block = malloc(size, stream, pool, row)
                if block is None:
                    self._fail(row, allocator.rounded(size))
                    break
                live[address] = block
                if log:
                    self.watch.note(row, allocator)
                    log.clear()
            elif action == completed:
                live_block = live.pop(address, None)
                # Waiting for all streams may have completed it, and its memory be another's by now.
                if (
                    live_block is not None
                    and live_block.state != FREE
                    and live_blocks.get(live_block.address) is live_block
                ):
                    free(live_block.address)
            elif action == AT_ONCE:
                continue
            elif action == requested:
                live_block = live.get(address)
                if live_block is not None and live_block.state == ALLOCATED:
                    request_free(live_block.address)
            elif action == _OOM and not self._try(row, size, stream, pool):
                break
        return stop

    def _fail(self, row: int, size: int) -> None:
        self.oom = out_of_memory(self.allocator, row, size, self.stacks)

    def _try(self, row: int, size: int, stream: int, pool: int) -> bool:
        """Whether a request that failed in the recording succeeds now."""
        block = self.allocator.malloc(size, stream, max(pool, 0), row)
        if block is None:
            self._fail(row, size)
            return False
        self.watch.note(row, self.allocator)
        self.allocator.complete_free(block.address)
        self.notes.append(f"the request that failed in the recording (event {row}) is served")
        return True
