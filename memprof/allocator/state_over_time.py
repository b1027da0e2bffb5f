"""What the allocator looked like at a moment of a trace, and how fragmentation went over time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from memprof.allocator.guided_replay import Guide
from memprof.allocator.outcome import largest_free
from memprof.allocator.replay_check import first_guess
from memprof.allocator.state import Origins, state_of
from memprof.trace import Column, Columns, State, Trace, column

__all__ = ["FragmentationSamples", "fragmentation", "segment_map", "segment_maps"]


@dataclass(frozen=True, slots=True, eq=False)
class FragmentationSamples(Columns):
    """Samples along a trace, in order; bytes."""

    event: Column = column("i8")
    """The sample shows the allocator before this event."""
    allocated: Column = column("i8")
    pending: Column = column("i8")
    """Freed, but waiting for another stream."""
    reserved: Column = column("i8")
    largest_free: Column = column("i8")
    """The largest request that the cache could serve without new memory."""
    segments: Column = column("i8")


def segment_map(trace: Trace, event: int) -> State:
    """Segments and blocks, with stacks, labels and categories, before event ``event``.

    ``len(trace.events)`` gives the end. Blocks that were live when the trace began carry what the
    end state or a recorded start knows of them.
    """
    return segment_maps(trace, [event])[0]


def segment_maps(trace: Trace, events: list[int]) -> list[State]:
    """`segment_map` at several moments for the price of one replay."""
    begin, guide = first_guess(trace)
    origins = Origins(trace.events, begin.state)
    states: dict[int, State] = {}
    for event in sorted(set(events)):
        guide.advance(min(max(event, 0), len(trace.events)))
        states[event] = state_of(guide.allocator, origins)
    return [states[event] for event in events]


def fragmentation(trace: Trace, samples: int = 500) -> FragmentationSamples:
    """Allocated, reserved and the largest free block at evenly spaced events, and at the end."""
    _, guide = first_guess(trace)
    moments = np.unique(np.linspace(0, len(trace.events), max(samples, 2)).astype(np.int64))
    rows = [_sample(guide, event) for event in moments.tolist()]
    table = np.array(rows, dtype=np.int64).reshape(-1, len(FragmentationSamples.names()))
    result: FragmentationSamples = FragmentationSamples(*table.T)
    return result


def _sample(guide: Guide, event: int) -> tuple[int, ...]:
    guide.advance(event)
    allocator = guide.allocator
    return (
        event,
        allocator.allocated,
        allocator.pending,
        allocator.reserved,
        largest_free(allocator),
        len(allocator.segments),
    )
