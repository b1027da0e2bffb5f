"""Lay a trace without segments (CPU tensors) out as the caching allocator would have.

Addresses in, addresses out: what the source calls an address is only a key here, every event but
the segments' is kept, and the result reads like a trace from a GPU, marked as modelled.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from memprof.allocator.model import CachingAllocator
from memprof.allocator.pools import Block
from memprof.allocator.settings import AllocatorSettings, recorded_settings
from memprof.allocator.state import Origins, start_owner, state_of
from memprof.allocator.versions import TieBreak, tie_break_of
from memprof.trace import Action, Blocks, BlockState, Events, LastReads, State, Trace

__all__ = ["layout"]

_ALLOC, _REQUESTED, _COMPLETED, _OTHER = (
    int(Action.ALLOC),
    int(Action.FREE_REQUESTED),
    int(Action.FREE_COMPLETED),
    int(Action.OTHER),
)


def layout(
    trace: Trace, *, settings: AllocatorSettings | None = None, torch_version: str = ""
) -> Trace:
    """The same trace with the addresses and segments that the model gives it.

    ``SEGMENT_ALLOC`` rows come before the ``ALLOC`` they serve and ``FREE_COMPLETED`` rows after a
    ``FREE_REQUESTED`` that has none, so indices of events shift; every other column is carried
    over. An allocation at a key that is still live frees that one first; a free of an unknown key
    becomes an ``OTHER`` event. Live blocks of ``start`` are allocated first, in their order.

    Args:
        trace: ``start`` may be missing (nothing is live then); its blocks may lack segments.
        settings: the allocator's; those that the trace records where left out.
        torch_version: decides how ties are broken; ``trace.torch_version`` where left out.
    """
    tie_break = tie_break_of(torch_version or trace.torch_version) or TieBreak.OLDEST_SEGMENT
    allocator = CachingAllocator(settings or recorded_settings(trace.settings), tie_break=tie_break)
    start_blocks, live = _place_start(allocator, trace.start or State())
    origins = Origins(trace.events, State(blocks=start_blocks))
    start = state_of(allocator, origins)
    rewritten = _run(allocator, trace.events, live)
    return replace(
        trace,
        events=rewritten.events(trace.events),
        start=start,
        end=state_of(allocator, origins),
        modelled=True,
        last_reads=rewritten.last_reads(trace),
    )


def _place_start(allocator: CachingAllocator, start: State) -> tuple[Blocks, dict[int, Block]]:
    """Allocate what was live; the rows that owners point into, and the blocks by key."""
    blocks: Blocks = start.blocks.take(start.blocks.state != BlockState.INACTIVE)
    live: dict[int, Block] = {}
    sizes = np.where(blocks.requested > 0, blocks.requested, blocks.size)
    for row, (key, size) in enumerate(zip(blocks.address.tolist(), sizes.tolist(), strict=True)):
        block = allocator.malloc(size)
        assert block is not None  # the modelled device has no end
        block.owner = start_owner(row)
        live[key] = block
    allocator.log.clear()
    return blocks, live


@dataclass(slots=True)
class _Rewritten:
    """New actions and addresses of the rows, and rows to put in before given ones."""

    actions: list[int]
    addresses: list[int]
    block_sizes: list[int]
    before: list[int] = field(default_factory=list)
    source: list[int] = field(default_factory=list)
    action: list[int] = field(default_factory=list)
    address: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)

    def put(self, before: int, source: int, action: int, address: int, size: int) -> None:
        """A row before row ``before``, otherwise like row ``source``."""
        self.before.append(before)
        self.source.append(source)
        self.action.append(action)
        self.address.append(address)
        self.size.append(size)

    def events(self, events: Events) -> Events:
        """All rows in order, as columns."""
        rows = np.insert(np.arange(len(events)), self.before, self.source)
        result: Events = events.take(rows)
        added = self._is_added(len(events))
        category = np.where(added, 0, result.category)
        columns = (
            _merge(column, self.before, extra)
            for column, extra in (
                (self.actions, self.action),
                (self.addresses, self.address),
                (events.size, self.size),
                (self.block_sizes, [0] * len(self.size)),
            )
        )
        action, address, size, sizes = columns
        return replace(
            result, action=action, address=address, size=size, block_size=sizes, category=category
        )

    def last_reads(self, trace: Trace) -> LastReads:
        """Those of a trace, by the indices of the rows in order."""
        places = np.flatnonzero(~self._is_added(len(trace.events)))
        reads = trace.last_reads
        return reads._replace(made=places[reads.made], read=places[reads.read])

    def _is_added(self, length: int) -> npt.NDArray[np.bool_]:
        return np.insert(np.zeros(length, dtype=bool), self.before, True)


def _merge(
    column: list[int] | npt.NDArray[np.int64], before: list[int], extra: list[int]
) -> npt.NDArray[np.int64]:
    return np.insert(np.asarray(column, dtype=np.int64), before, extra)


def _run(allocator: CachingAllocator, events: Events, live: dict[int, Block]) -> _Rewritten:
    out = _Rewritten(events.action.tolist(), events.address.tolist(), [0] * len(events))
    actions, addresses, sizes = out.actions, out.addresses, out.block_sizes
    columns = zip(events.size.tolist(), events.stream.tolist(), events.pool.tolist(), strict=True)
    completed = _completed_later(events)
    malloc, free, log = allocator.malloc, allocator.free, allocator.log
    for row, (size, stream, pool) in enumerate(columns):
        action, key = actions[row], addresses[row]
        if action == _ALLOC:
            if key in live:
                _drop(out, row, live.pop(key), allocator)
            block = malloc(size, stream, max(pool, 0), row)
            assert block is not None  # the modelled device has no end
            live[key] = block
            addresses[row] = block.address
            sizes[row] = block.size
            if log:
                for event in log:
                    out.put(row, row, event[0], event[1], event[2])
                log.clear()
        elif action in (_REQUESTED, _COMPLETED):
            live_block = live.get(key)
            if live_block is None:
                actions[row], addresses[row] = _OTHER, 0
                continue
            addresses[row] = live_block.address
            if action == _REQUESTED and completed[row]:
                allocator.request_free(live_block.address)
                continue
            if action == _REQUESTED:
                out.put(row + 1, row, _COMPLETED, live_block.address, size)
            del live[key]
            free(live_block.address)
    return out


def _drop(out: _Rewritten, row: int, block: Block, allocator: CachingAllocator) -> None:
    """Free a block whose free the source missed, before row ``row``."""
    for action in (_REQUESTED, _COMPLETED):
        out.put(row, row, action, block.address, block.requested)
    allocator.free(block.address)


def _completed_later(events: Events) -> list[bool]:
    """For each row: whether it is a ``FREE_REQUESTED`` whose ``FREE_COMPLETED`` is recorded."""
    result = [False] * len(events)
    if not (events.action == _COMPLETED).any():
        return result
    waiting: dict[int, int] = {}
    for row, (action, key) in enumerate(
        zip(events.action.tolist(), events.address.tolist(), strict=True)
    ):
        if action == _REQUESTED:
            waiting[key] = row
        elif action == _ALLOC:
            waiting.pop(key, None)
        elif action == _COMPLETED and key in waiting:
            result[waiting.pop(key)] = True
    return result
