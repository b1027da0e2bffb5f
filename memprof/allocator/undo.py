"""The state in which a trace began, rebuilt by undoing its events from the state it ended in.

A recording rarely starts with the process, and its recorder keeps only the last events: what was
live before them is known by its frees, or by being live still. How gaps between live blocks become
free blocks or parts of blocks is in ``gaps``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from memprof.allocator.gaps import BlocksAtStart, apart, is_tiled, live_blocks_of, tiled
from memprof.allocator.pools import ArenaKey
from memprof.allocator.ranges import RangeSet
from memprof.allocator.rounding import round_size
from memprof.allocator.segment_pools import Territory
from memprof.allocator.settings import AllocatorSettings, recorded_settings
from memprof.trace import Action, BlockState, Events, Segments, State, Trace

__all__ = ["AT_ONCE", "Beginning", "beginning", "calls", "free_actions", "start_state"]

_ALLOC, _REQUESTED, _COMPLETED = (
    int(Action.ALLOC),
    int(Action.FREE_REQUESTED),
    int(Action.FREE_COMPLETED),
)


@dataclass(frozen=True, slots=True)
class Beginning:
    """The state at the start of a trace, and how sure of it one can be."""

    state: State
    first_pages: dict[ArenaKey, int] = field(default_factory=dict)
    """Lowest address that each arena's expandable segment is known to reach down to."""
    assumed: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))
    """Per block: nothing shows whether it owns an unsplit remainder behind it."""
    pool_of_event: dict[int, int] = field(default_factory=dict)
    """Pool of ``SEGMENT_ALLOC`` events, as the end state tells."""
    contradictions: int = 0
    """Events that no state explains in this order: the recording has holes."""


def start_state(trace: Trace, settings: AllocatorSettings | None = None) -> State:
    """What was live, cached and reserved before the first event of ``trace``.

    A block that was live at the start and freed in the trace is as large as what was asked for it,
    rounded, and the remainder of up to 1 MiB that the allocator did not split off, wherever the
    trace shows it: by an allocation that begins behind it while the block still lives, or by a gap
    that is too small to be a free block.
    """
    return beginning(trace, settings).state


def beginning(trace: Trace, settings: AllocatorSettings | None = None) -> Beginning:
    """`start_state` and what a replay needs beyond it."""
    settings = settings or recorded_settings(trace.settings)
    if trace.start is not None:
        return _recorded_beginning(trace, trace.start, settings)
    assert trace.end is not None  # a trace has one of the two
    undo = _Undo(trace, trace.end, settings)
    undo.run()
    segments = undo.segments()
    live, contradictions = undo.live_blocks().inside(segments)
    blocks, assumptions = tiled(segments, live, trace, settings)
    return Beginning(
        State(segments, blocks, trace.end.unlisted),
        first_pages=undo.territory.first_pages(segments),
        assumed=assumptions,
        pool_of_event=undo.territory.pool_of_event,
        contradictions=max(undo.contradictions + contradictions, undo.outside(segments)),
    )


def _recorded_beginning(trace: Trace, start: State, settings: AllocatorSettings) -> Beginning:
    """A start that the recording has, put in order where its blocks do not fill its segments."""
    contradictions = 0
    if not is_tiled(start):
        order = np.argsort(start.segments.address, kind="stable")
        segments = start.segments.take(order)
        segments = segments.take(apart(segments))
        live, contradictions = live_blocks_of(start, trace).inside(segments)
        start = State(segments, tiled(segments, live, trace, settings)[0], start.unlisted)
    return Beginning(
        start,
        first_pages=Territory(trace, settings).first_pages(start.segments),
        assumed=np.zeros(len(start.blocks), dtype=bool),
        contradictions=contradictions,
    )


def free_actions(trace: Trace) -> tuple[int, int | None]:
    """The action that ends a block's use, and the one that announces it.

    A recorder told to skip an action leaves one of the two: then it stands for both.
    """
    events = trace.events
    completed = events.address[events.action == _COMPLETED]
    requested = events.address[events.action == _REQUESTED]
    if len(requested) and not len(completed) and not _all_pending(requested, trace.end):
        return _REQUESTED, None
    if len(completed) and not len(requested):
        addresses = events.address[events.action == _ALLOC]
        if np.isin(completed, addresses).any():  # else they were requested before the trace began
            return _COMPLETED, None
    return _COMPLETED, _REQUESTED


AT_ONCE = 255
"""In place of a ``FREE_REQUESTED`` whose ``FREE_COMPLETED`` is the very next event."""


def calls(events: Events, completed: int, requested: int | None) -> list[int]:
    """The actions of a trace, with frees that complete at once marked: nearly all of them do."""
    action = events.action
    if requested is None or len(action) < 2:
        return action.tolist()  # type: ignore[no-any-return]
    at_once = (action[:-1] == requested) & (action[1:] == completed)
    at_once &= events.address[1:] == events.address[:-1]
    marked = action.copy()
    marked[:-1][at_once] = AT_ONCE
    return marked.tolist()  # type: ignore[no-any-return]


def _all_pending(addresses: npt.NDArray[np.int64], end: State | None) -> bool:
    if end is None:
        return True
    waiting = end.blocks.state == BlockState.ACTIVE_PENDING_FREE
    return bool(np.isin(addresses, end.blocks.address[waiting]).all())


class _Undo:
    """The end state, walked back event by event."""

    def __init__(self, trace: Trace, end: State, settings: AllocatorSettings) -> None:
        self.trace, self.end, self.settings = trace, end, settings
        self.territory = Territory(trace, settings)
        self.contradictions = 0
        self.alloc_stack_on_free: dict[bool, int] = {True: 0, False: 0}
        whole = ~end.segments.expandable
        self._rows = dict(
            zip(end.segments.address[whole].tolist(), np.flatnonzero(whole).tolist(), strict=True)
        )
        self._freed: dict[int, int] = {}  # address of a segment -> event that freed it
        self._mapped = RangeSet()
        for address, size in zip(
            end.segments.address[~whole].tolist(), end.segments.size[~whole].tolist(), strict=True
        ):
            self._mapped.add(address, size)
        # Address of a live block -> its row at the end, or -1 - the event that freed it.
        active = np.flatnonzero(end.blocks.state != BlockState.INACTIVE)
        self._live = dict(zip(end.blocks.address[active].tolist(), active.tolist(), strict=True))
        pending = end.blocks.state == BlockState.ACTIVE_PENDING_FREE
        self._pending = set(end.blocks.address[pending].tolist())

    def run(self) -> None:
        """Undo every event, last first."""
        events = self.trace.events
        live, pending, stacks = self._live, self._pending, events.stack.tolist()
        actions, addresses = events.action.tolist(), events.address.tolist()
        completed, requested = free_actions(self.trace)
        contradictions = 0
        for row in range(len(actions) - 1, -1, -1):
            action, address = actions[row], addresses[row]
            if action == _ALLOC:
                entry = live.pop(address, None)
                if entry is None:
                    contradictions += 1
                elif entry < 0 and stacks[row]:
                    self.alloc_stack_on_free[stacks[-1 - entry] == stacks[row]] += 1
            elif action == completed:
                contradictions += address in live
                live[address] = -1 - row
                if requested is not None:
                    pending.add(address)
            elif action == requested:
                contradictions += address not in live
                pending.discard(address)
            elif action <= Action.SEGMENT_UNMAP:
                contradictions += not self._undo_segment(row, action, address)
        self.contradictions += contradictions

    def _undo_segment(self, row: int, action: int, address: int) -> bool:
        """Whether the event fits the state after it."""
        size = int(self.trace.events.size[row])
        if action == Action.SEGMENT_ALLOC:
            at_end = self._rows.pop(address, None)
            self.territory.note(row, at_end)
            return at_end is not None or self._freed.pop(address, None) is not None
        if action == Action.SEGMENT_FREE:
            self._freed[address] = row
            return True
        if action == Action.SEGMENT_MAP:
            return self._mapped.remove(address, size)
        return self._mapped.add(address, size)

    def segments(self) -> Segments:
        """The segments at the start, by address."""
        end, events = self.end.segments, self.trace.events
        rows_at_end = end.take(np.array(sorted(self._rows.values()), dtype=np.intp))
        rows = np.array(sorted(self._freed.values()), dtype=np.intp)
        freed = Segments.build(
            address=events.address[rows],
            size=events.size[rows],
            stream=events.stream[rows],
            pool=np.maximum(events.pool[rows], 0),
            kind=self.territory.kinds(events.size[rows]),
            stack=events.stack[rows],
        )
        every = Segments.concatenate(
            [rows_at_end, freed, self.territory.mapped_segments(self._mapped)]
        )
        every = every.take(np.argsort(every.address, kind="stable"))
        fit = apart(every)
        self.contradictions += int((~fit).sum())
        result: Segments = every.take(fit)
        return result

    def outside(self, start: Segments) -> int:
        """How many allocations lie in no segment that the recording ever names."""
        events, end = self.trace.events, self.end.segments
        additions = events.take(np.isin(events.action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)))
        ranges = RangeSet()
        for rows in (start, end, additions):
            for address, size in zip(rows.address.tolist(), rows.size.tolist(), strict=True):
                ranges.add(address, size)
        spans = np.array(list(ranges), dtype=np.int64).reshape(-1, 2)
        addresses = events.address[events.action == _ALLOC]
        if not len(spans):
            return len(addresses)
        row = np.searchsorted(spans[:, 0], addresses, side="right") - 1
        return int(((row < 0) | (addresses >= spans[np.maximum(row, 0), 1])).sum())

    def live_blocks(self) -> BlocksAtStart:
        """What was live at the start, by address."""
        blocks, events = self.end.blocks, self.trace.events
        addresses = np.array(sorted(self._live), dtype=np.int64)
        entries = np.array([self._live[a] for a in addresses.tolist()], dtype=np.int64)
        at_end = entries >= 0
        row, event = entries[at_end], -1 - entries[~at_end]
        live = BlocksAtStart.build(
            address=addresses,
            freed=np.where(at_end, len(events), -1 - entries),
            exact=at_end,
            state=np.where(
                np.isin(addresses, np.array(sorted(self._pending), dtype=np.int64)),
                BlockState.ACTIVE_PENDING_FREE,
                BlockState.ACTIVE_ALLOCATED,
            ),
        )
        divisions = self.settings.roundup_divisions
        requests = events.size[event]
        live.size[at_end] = blocks.size[row]
        live.size[~at_end] = [round_size(size, divisions) for size in requests.tolist()]
        live.requested[at_end], live.requested[~at_end] = blocks.requested[row], requests
        for name in ("stack", "label", "category"):
            getattr(live, name)[at_end] = getattr(blocks, name)[row]
        if self.alloc_stack_on_free[True] and not self.alloc_stack_on_free[False]:
            live.stack[~at_end] = events.stack[event]  # recorded with context="alloc"
        return replace(live)
