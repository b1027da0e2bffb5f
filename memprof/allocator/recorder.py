"""Programs run on the model and recorded as torch's recorder would have recorded them.

For tests, examples and stand-ins of the real recorder: what comes out reads like a GPU's trace.
"""

from __future__ import annotations

import numpy as np

from memprof.allocator.model import CachingAllocator
from memprof.allocator.state import state_of
from memprof.trace import Action, Events, State, Tables, Trace

__all__ = ["Recorder"]

_COMPLETED = int(Action.FREE_COMPLETED)


class Recorder:
    """Calls of a program, passed on to a `CachingAllocator` and written down."""

    def __init__(self, model: CachingAllocator | None = None) -> None:
        """Record what ``model`` (a fresh one with torch's defaults where left out) does."""
        self.model = model or CachingAllocator()
        self._rows: list[tuple[int, int, int, int, int]] = []  # action, address, size, stream, pool

    def __len__(self) -> int:
        """Events so far."""
        return len(self._rows)

    def alloc(self, size: int, stream: int = 0, pool: int = 0) -> int | None:
        """The address of ``size`` bytes; None when out of memory."""
        block = self.model.malloc(size, stream, pool)
        self._take_log()
        if block is None:
            return None
        self._write(Action.ALLOC, block.address, size, stream, pool)
        return block.address

    def request_free(self, address: int) -> None:
        """The tensor is gone, its block still waits for another stream."""
        block = self.model.live[address]
        arena = block.arena
        self._write(Action.FREE_REQUESTED, address, block.requested, arena.stream, arena.pool)
        self.model.request_free(address)

    def complete_free(self, address: int) -> None:
        """The block goes back to its pool; nothing happens if it already did."""
        block = self.model.live.get(address)
        if block is not None:
            arena = block.arena
            self._write(_COMPLETED, address, block.requested, arena.stream, arena.pool)
            self.model.complete_free(address)

    def free(self, address: int) -> None:
        """Free at once."""
        self.request_free(address)
        self.complete_free(address)

    def empty_cache(self, pool: int | None = None) -> None:
        """``torch.cuda.empty_cache()``."""
        self.model.empty_cache(pool)
        self._take_log()

    def trace(self, first: int = 0, device: str = "cuda:0", torch_version: str = "") -> Trace:
        """Everything since event ``first``, as if a ring had dropped what was before.

        As in a snapshot, the state at the end is there and the one at the start is not.
        """
        table = np.array(self._rows[first:], dtype=np.int64).reshape(-1, 5)
        action, address, size, stream, pool = table.T
        events = Events.build(
            len(table),
            action=action,
            address=address,
            size=size,
            stream=stream,
            pool=pool,
            time_us=np.arange(first, first + len(table)),
        )
        pools = sorted({0, *(int(row[4]) for row in self._rows)})
        settings = self.model.settings
        return Trace(
            device=device,
            events=events,
            tables=Tables(pools=tuple((0, number) for number in range(pools[-1] + 1))),
            end=_state_without_owners(self.model),
            settings={
                "PYTORCH_CUDA_ALLOC_CONF": settings.text(),
                "expandable_segments": settings.expandable_segments,
            },
            torch_version=torch_version,
        )

    def _write(self, action: int, address: int, size: int, stream: int, pool: int) -> None:
        self._rows.append((int(action), address, size, stream, pool))

    def _take_log(self) -> None:
        self._rows += self.model.log
        self.model.log.clear()


def _state_without_owners(model: CachingAllocator) -> State:
    """The state without owners: the recorder keeps no stacks."""
    for block in model.live.values():
        block.owner = -1
    return state_of(model)
