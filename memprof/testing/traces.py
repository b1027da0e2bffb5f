"""TraceBuilder: one device's trace, event by event; snapshots and run files are made next door."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from memprof.trace import (
    Action,
    Blocks,
    BlockState,
    Category,
    Events,
    Frame,
    Label,
    Phase,
    SegmentKind,
    Segments,
    State,
    Tables,
    Trace,
)

__all__ = ["TraceBuilder"]

_MIB = 1 << 20
_SMALL_SEGMENT = 2 * _MIB
_LARGEST_SMALL = _MIB
_FIRST_ADDRESS = 0x7F00_0000_0000
_FIRST_TIME_US = 1_700_000_000_000_000


@dataclass(slots=True)
class _TraceBlock:
    address: int
    size: int
    requested: int
    stack: int
    label: int
    category: int
    stream: int
    segment: int
    pending: bool = False


@dataclass(slots=True)
class _Segment:
    address: int
    size: int
    stream: int
    kind: SegmentKind
    expandable: bool
    used: int = 0
    released: bool = False


@dataclass(slots=True)
class TraceBuilder:
    """One device's trace, event by event; every method but `build` returns the builder.

    Allocations are named, so that they can be freed. Sizes are rounded up to 512 bytes; a block
    that was freed serves the next allocation of its very size, and where none does a segment is
    taken first, of 2 MiB for requests up to 1 MiB. `existing` things were there before the trace.
    """

    device: str = "cuda:0"
    expandable: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    step_us: int = 10
    """Microseconds between two events."""
    _rows: list[dict[str, int]] = field(default_factory=list)
    _tables: dict[str, dict[Any, int]] = field(
        default_factory=lambda: {
            "frames": {},
            "stacks": {(): 0},
            "labels": {Label(): 0},
            "pools": {(0, 0): 0},
        }
    )
    _live: dict[str, _TraceBlock] = field(default_factory=dict)
    _segments: list[_Segment] = field(default_factory=list)
    _holes: dict[tuple[int, int], list[_TraceBlock]] = field(default_factory=dict)
    _label: int = 0
    _time_us: int = _FIRST_TIME_US
    _start: State | None = None
    _recording: bool = True

    def __len__(self) -> int:
        """Events so far."""
        return len(self._rows)

    def label(
        self,
        *,
        step: int = -1,
        phase: Phase = Phase.UNKNOWN,
        module: str = "",
        annotation: str = "",
    ) -> TraceBuilder:
        """What later events are labelled with."""
        self._label = self._row("labels", Label(step, phase, module, annotation))
        return self

    def existing(self, size: int, name: str, **what: Any) -> TraceBuilder:
        """An allocation that is there when the trace begins; takes what `alloc` takes."""
        if self._start is not None:
            raise ValueError("the trace has begun: existing() comes before every event")
        self._recording = False
        self.alloc(size, name, **what)
        self._recording = True
        return self

    def alloc(
        self,
        size: int,
        name: str,
        *,
        stack: Sequence[Frame] = (),
        category: Category = Category.UNKNOWN,
        stream: int = 0,
    ) -> TraceBuilder:
        """An allocation of ``size`` bytes; ``stack`` is innermost first."""
        if name in self._live:
            raise ValueError(f"{name!r} is allocated already")
        nbytes = max(-(-size // 512), 1) * 512
        row = self._stack(stack)
        hole = self._hole(nbytes, stream, row)
        block = _TraceBlock(
            hole.address, nbytes, size, row, self._label, int(category), stream, hole.segment
        )
        self._live[name] = block
        self._event(Action.ALLOC, block.address, size, block)
        return self

    def free(
        self, name: str, *, stack: Sequence[Frame] | None = None, complete: bool = True
    ) -> TraceBuilder:
        """The owner drops ``name``; with ``complete`` False it waits for `completed`.

        ``stack`` is where that happened; None leaves the stack of the allocation, as torch does
        with ``context="alloc"``.
        """
        block = self._live[name]
        row = block.stack if stack is None else self._stack(stack)
        self._event(Action.FREE_REQUESTED, block.address, block.requested, block, row)
        block.pending = True
        return self.completed(name) if complete else self

    def completed(self, name: str) -> TraceBuilder:
        """The block of ``name`` goes back to its pool."""
        block = self._live.pop(name)
        self._event(Action.FREE_COMPLETED, block.address, block.requested, block)
        self._holes.setdefault((block.size, block.stream), []).append(block)
        return self

    def empty_cache(self) -> TraceBuilder:
        """Segments in which nothing lives go back to the driver."""
        in_use = {block.segment for block in self._live.values()}
        for number, segment in enumerate(self._segments):
            if number in in_use or segment.released:
                continue
            segment.released = True
            action = Action.SEGMENT_UNMAP if segment.expandable else Action.SEGMENT_FREE
            self._event(action, segment.address, segment.size)
            for holes in self._holes.values():
                holes[:] = [hole for hole in holes if hole.segment != number]
        return self

    def oom(self, size: int, *, device_free: int = 0) -> TraceBuilder:
        """A request for ``size`` bytes fails."""
        self._event(Action.OOM, device_free, size)
        return self

    def wait(self, duration_us: int) -> TraceBuilder:
        """Time passes."""
        self._time_us += duration_us
        return self

    def build(self, *, start: bool = True, end: bool = True) -> Trace:
        """The trace so far, with the states at its start and its end where asked."""
        if not start and not end:
            raise ValueError("a trace knows its start, its end or both")
        last = self._state()
        return Trace(
            device=self.device,
            events=Events.build(
                len(self._rows), **{n: [r[n] for r in self._rows] for n in Events.names()}
            ),
            tables=Tables(**{name: tuple(rows) for name, rows in self._tables.items()}),
            start=(self._start or last) if start else None,
            end=last if end else None,
            settings=dict(self.settings),
        )

    def _row(self, table: str, key: Any) -> int:
        rows = self._tables[table]
        return rows.setdefault(key, len(rows))

    def _stack(self, stack: Sequence[Frame]) -> int:
        return self._row("stacks", tuple(self._row("frames", frame) for frame in stack))

    def _event(
        self,
        action: Action,
        address: int,
        size: int,
        block: _TraceBlock | None = None,
        stack: int = -1,
    ) -> None:
        if not self._recording:
            return
        if self._start is None:
            self._start = self._state(without=block if action == Action.ALLOC else None)
        self._rows.append(
            {
                "action": int(action),
                "address": address,
                "size": size,
                "stream": block.stream if block else 0,
                "time_us": self._time_us,
                "stack": stack if stack >= 0 else (block.stack if block else 0),
                "label": self._label,
                "pool": 0,
                "category": block.category if block and action == Action.ALLOC else 0,
                "block_size": 0,
                "origin": 0,
            }
        )
        self._time_us += self.step_us

    def _hole(self, nbytes: int, stream: int, stack: int) -> _TraceBlock:
        holes = self._holes.get((nbytes, stream))
        if holes:
            return holes.pop()
        kind = SegmentKind.SMALL if nbytes <= _LARGEST_SMALL else SegmentKind.LARGE
        for number, segment in enumerate(self._segments):
            fits = segment.size - segment.used >= nbytes and not segment.released
            if fits and segment.kind == kind and segment.stream == stream:
                return self._cut(number, nbytes, stack)
        self._add_segment(nbytes, stream, kind)
        return self._cut(len(self._segments) - 1, nbytes, stack)

    def _cut(self, number: int, nbytes: int, stack: int) -> _TraceBlock:
        segment = self._segments[number]
        address = segment.address + segment.used
        segment.used += nbytes
        return _TraceBlock(address, nbytes, 0, stack, 0, 0, segment.stream, number)

    def _add_segment(self, nbytes: int, stream: int, kind: SegmentKind) -> None:
        last = self._segments[-1] if self._segments else None
        # A gap between segments, so that no two of them look like one.
        address = last.address + last.size + _SMALL_SEGMENT if last else _FIRST_ADDRESS
        size = -(-nbytes // _SMALL_SEGMENT) * _SMALL_SEGMENT
        segment = _Segment(address, size, stream, kind, self.expandable)
        action = Action.SEGMENT_MAP if self.expandable else Action.SEGMENT_ALLOC
        self._event(action, address, size)
        self._segments.append(segment)

    def _state(self, without: _TraceBlock | None = None) -> State:
        segments = [s for s in self._segments if not s.released]
        row_of = {self._segments.index(s): row for row, s in enumerate(segments)}
        live = [b for b in self._live.values() if b is not without]
        rows: list[dict[str, int]] = []
        for number, row in row_of.items():
            inside = sorted(
                (b for b in live if b.segment == number), key=lambda block: block.address
            )
            rows += _tiles(self._segments[number], inside, row)
        return State(
            segments=Segments.build(
                len(segments),
                address=[s.address for s in segments],
                size=[s.size for s in segments],
                stream=[s.stream for s in segments],
                kind=[s.kind for s in segments],
                expandable=[s.expandable for s in segments],
            ),
            blocks=Blocks.build(len(rows), **{n: [r[n] for r in rows] for n in Blocks.names()}),
        )


def _tiles(segment: _Segment, blocks: Iterable[_TraceBlock], row: int) -> list[dict[str, int]]:
    """The rows of `Blocks` that fill a segment: what is in use, and the gaps between."""
    tiles: list[dict[str, int]] = []
    at = segment.address
    for block in blocks:
        if block.address > at:
            tiles.append(_gap(at, block.address - at, row))
        state = BlockState.ACTIVE_PENDING_FREE if block.pending else BlockState.ACTIVE_ALLOCATED
        tiles.append(
            {
                "address": block.address,
                "size": block.size,
                "requested": block.requested,
                "state": int(state),
                "segment": row,
                "stack": block.stack,
                "label": block.label,
                "category": block.category,
            }
        )
        at = block.address + block.size
    if at < segment.address + segment.size:
        tiles.append(_gap(at, segment.address + segment.size - at, row))
    return tiles


def _gap(address: int, size: int, row: int) -> dict[str, int]:
    return dict.fromkeys(Blocks.names(), 0) | {"address": address, "size": size, "segment": row}
