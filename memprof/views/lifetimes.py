"""From when to when every allocation of a trace lived, and how many bytes it took.

Frees are paired with allocations by address; what sums and groups lifetimes lives elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from memprof.trace import (
    NOT_RECORDED,
    Action,
    Blocks,
    BlockState,
    Column,
    Columns,
    Events,
    State,
    Trace,
    column,
)

__all__ = ["Lifetimes", "block_bytes", "lifetimes"]

_MIN_BLOCK = 512
"""Every block is a multiple of this (``kMinBlockSize`` in c10/core/AllocatorConfig.h)."""
_MIB = 1 << 20
_INTERVALS = 16
"""Size classes of ``roundup_power2_divisions``: up to 2 MiB, 4 MiB, … 64 GiB and more."""


@dataclass(frozen=True, slots=True, eq=False)
class Lifetimes(Columns):
    """One row per allocation that was live at any moment of a trace, by the event it began with."""

    alloc: Column = column("i8")
    """Event that made it; `NOT_RECORDED` if it was there when the trace began."""
    free: Column = column("i8")
    """Event at which its owner dropped it; the number of events if it outlived the trace."""
    address: Column = column("i8")
    size: Column = column("i8")
    """Bytes taken from the segment."""
    requested: Column = column("i8")
    stack: Column = column("i4")
    label: Column = column("i4")
    category: Column = column("u1")
    stream: Column = column("i8")

    def alive_at(self, event: int) -> npt.NDArray[np.bool_]:
        """Which rows are allocated just after ``event``; -1 asks for the start of the trace."""
        mask: npt.NDArray[np.bool_] = (self.alloc <= event) & (self.free > event)
        return mask


def lifetimes(trace: Trace) -> Lifetimes:
    """Every allocation of ``trace``; those there at its start come first, by address.

    A free whose allocation was not recorded is an allocation that was there at the start. A free
    that only completed within the trace was requested before it, so it is no lifetime here.
    """
    events = trace.events
    rows = _match(events)
    parts = [_at_start(trace, rows), _in_window(trace, rows)]
    lives: Lifetimes = Lifetimes.concatenate(parts)
    return lives


@dataclass(frozen=True, slots=True)
class _Matches:
    alloc: npt.NDArray[np.int64]
    """``ALLOC`` events in order."""
    free: npt.NDArray[np.int64]
    """The event that ended each; the number of events if none did."""
    orphans: npt.NDArray[np.int64]
    """``FREE_REQUESTED`` events whose allocation came before the trace."""


def _match(events: Events) -> _Matches:
    """Allocations paired with their frees: neighbours once events are ordered by address."""
    is_alloc = events.action == Action.ALLOC
    index = np.flatnonzero(is_alloc | (events.action == _freeing_action(events)))
    order = index[np.argsort(events.address[index], kind="stable")]
    address, alloc = events.address[order], is_alloc[order]
    same = np.zeros(len(order), dtype=bool)
    same[:-1] = address[1:] == address[:-1]  # the next event is of the same address
    # An allocation ends at the next event of its address, whatever that is: were it another
    # allocation, the free between them is lost.
    ends = np.full(len(order), len(events), dtype=np.int64)
    ends[:-1][same[:-1]] = order[1:][same[:-1]]
    end_of = np.full(len(events), len(events), dtype=np.int64)
    end_of[order] = ends
    allocs = np.flatnonzero(is_alloc)
    follows_alloc = np.zeros(len(order), dtype=bool)
    follows_alloc[1:] = same[:-1] & alloc[:-1]
    orphans = np.sort(order[~alloc & ~follows_alloc])
    return _Matches(allocs, end_of[allocs], orphans)


def _freeing_action(events: Events) -> Action:
    """The action that ends a lifetime: ``free_completed`` where a recorder skipped the request.

    (``skip_actions`` of ``_record_memory_history``.) A ring that kept only the tail of a free shows
    no allocation either, and what it completes was no longer allocated when the trace began.
    """
    actions = np.bincount(events.action, minlength=len(Action))
    skipped = actions[Action.FREE_REQUESTED] == 0 and actions[Action.ALLOC] > 0
    return Action.FREE_COMPLETED if skipped else Action.FREE_REQUESTED


def _in_window(trace: Trace, rows: _Matches) -> Lifetimes:
    events, allocs = trace.events, rows.alloc
    requested = events.size[allocs]
    rounded_sizes = events.block_size[allocs]
    size = np.where(rounded_sizes > 0, rounded_sizes, block_bytes(requested, trace.settings))
    live = np.flatnonzero(rows.free == len(events))
    size[live] = _sizes_in(trace.end, events.address[allocs[live]], size[live])
    return Lifetimes(
        alloc=allocs,
        free=rows.free,
        address=events.address[allocs],
        size=size,
        requested=requested,
        stack=events.stack[allocs],
        label=events.label[allocs],
        category=events.category[allocs],
        stream=events.stream[allocs],
    )


def _sizes_in(state: State | None, address: Any, otherwise: Any) -> Any:
    """Bytes of the allocated blocks at ``address`` in a state, which knows them exactly."""
    if state is None or not len(state.blocks):
        return otherwise
    blocks = _allocated(state)
    row = np.minimum(np.searchsorted(blocks.address, address), max(len(blocks) - 1, 0))
    if not len(blocks):
        return otherwise
    return np.where(blocks.address[row] == address, blocks.size[row], otherwise)


def _allocated(state: State) -> Blocks:
    mask = state.blocks.state == BlockState.ACTIVE_ALLOCATED
    blocks: Blocks = state.blocks.take(mask)
    if len(blocks) > 1 and bool((np.diff(blocks.address) < 0).any()):
        blocks = blocks.take(np.argsort(blocks.address, kind="stable"))
    return blocks


def _at_start(trace: Trace, rows: _Matches) -> Lifetimes:
    if trace.start is not None:
        return _recorded_start(trace, trace.start, rows)
    survivors = _from_start(trace, rows)
    freed = _freed_in_trace(trace, rows.orphans)
    lives: Lifetimes = Lifetimes.concatenate([survivors, freed])
    return lives.take(np.argsort(lives.address, kind="stable"))


def _recorded_start(trace: Trace, start: State, rows: _Matches) -> Lifetimes:
    """The start as recorded; each block ends at the first free of its address, if any."""
    blocks = _allocated(start)
    events, orphans = trace.events, rows.orphans
    address, first = np.unique(events.address[orphans], return_index=True)
    free = np.full(len(blocks), len(events), dtype=np.int64)
    if len(address):
        at = np.minimum(np.searchsorted(address, blocks.address), len(address) - 1)
        hit = address[at] == blocks.address
        free[hit] = orphans[first[at[hit]]]
    streams = start.segments.stream[blocks.segment] if len(start.segments) else 0
    return Lifetimes.build(
        len(blocks),
        alloc=np.full(len(blocks), NOT_RECORDED),
        free=free,
        stream=np.broadcast_to(streams, len(blocks)),
        **_of_blocks(blocks),
    )


_SHARED = ("address", "size", "requested", "stack", "label", "category")
"""Columns that blocks and lifetimes have in common."""


def _of_blocks(blocks: Blocks) -> dict[str, Column]:
    return {name: getattr(blocks, name) for name in _SHARED}


def _from_start(trace: Trace, rows: _Matches) -> Lifetimes:
    """Blocks of the final state that no event of the trace made."""
    if trace.end is None:
        return Lifetimes.build()
    blocks, events = _allocated(trace.end), trace.events
    made_and_live = events.address[rows.alloc[rows.free == len(events)]]
    blocks = blocks.take(~np.isin(blocks.address, made_and_live))
    stream = trace.end.segments.stream
    return Lifetimes.build(
        len(blocks),
        alloc=np.full(len(blocks), NOT_RECORDED),
        free=np.full(len(blocks), len(events)),
        stream=stream[blocks.segment] if len(stream) else np.zeros(len(blocks)),
        **_of_blocks(blocks),
    )


def _freed_in_trace(trace: Trace, orphans: npt.NDArray[np.int64]) -> Lifetimes:
    """What the trace frees and did not make; a free carries its allocation's stack or its own."""
    events = trace.events
    requested = events.size[orphans]
    return Lifetimes.build(
        len(orphans),
        alloc=np.full(len(orphans), NOT_RECORDED),
        free=orphans,
        address=events.address[orphans],
        size=block_bytes(requested, trace.settings),
        requested=requested,
        stack=events.stack[orphans],
        stream=events.stream[orphans],
    )


def block_bytes(requested: Any, settings: Any) -> Any:
    """Bytes of the blocks for ``requested`` bytes (an array), under the recorded rounding.

    Rounding: ``round_size`` in torch's CUDACachingAllocator.cpp. A block may be larger still where
    a remainder was too small to split off; only a replay or the final state knows that.
    """
    requested = np.asarray(requested, dtype=np.int64)
    rounded = np.maximum((requested + _MIN_BLOCK - 1) // _MIN_BLOCK, 1) * _MIN_BLOCK
    divisions = _divisions(settings)
    if not divisions.any() or not len(requested):
        return rounded
    size = np.maximum(requested, 1)
    exponent = np.frexp(size.astype(np.float64))[1].astype(np.int64) - 1
    parts = divisions[np.clip(exponent - 20, 0, _INTERVALS - 1)]
    step = np.left_shift(1, exponent) // np.maximum(parts, 1)
    power2 = np.where(step > 0, -(-size // np.maximum(step, 1)) * step, np.left_shift(2, exponent))
    return np.where((parts > 1) & (requested > _MIN_BLOCK * parts), power2, rounded)


def _divisions(settings: Any) -> npt.NDArray[np.int64]:
    """``roundup_power2_divisions`` as recorded: ``{"1": 0, "2": 0, "4": 4, …}`` by MiB."""
    table = np.zeros(_INTERVALS, dtype=np.int64)
    divisions = settings.get("roundup_power2_divisions") if settings else None
    if isinstance(divisions, dict):
        for key, value in divisions.items():
            interval = int(key).bit_length() - 1
            if 0 <= interval < _INTERVALS:
                table[interval] = int(value)
    return table
