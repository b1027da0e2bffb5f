"""Recordings as the pickle that ``torch.cuda.memory._dump_snapshot`` writes.

So a run from any machine opens in PyTorch's own viewers (pytorch.org/memory_viz and
``torch/cuda/_memory_viz.py``). The schema is that of torch 2.13; torch is not imported.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memprof.errors import MissingError
from memprof.trace import (
    Action,
    BlockState,
    Column,
    Label,
    Phase,
    SegmentKind,
    State,
    Tables,
    Trace,
)

__all__ = ["torch_snapshot", "write_torch_snapshot"]

_PROTOCOL = 4
"""Viewers before 2026 refuse protocol 5, the default of Python 3.14."""

_ACTIONS = {int(action): action.name.lower() for action in Action if action is not Action.OTHER}
_STATES = {int(state): state.name.lower() for state in BlockState}


def write_torch_snapshot(path: str | Path, traces: Sequence[Trace]) -> None:
    """Write ``traces`` (one a device) to ``path``; see `torch_snapshot`."""
    with Path(path).open("wb") as file:
        pickle.dump(torch_snapshot(traces), file, protocol=_PROTOCOL)


def torch_snapshot(traces: Sequence[Trace]) -> dict[str, Any]:
    """What ``torch.cuda.memory._snapshot()`` would have returned at the end of ``traces``.

    ``cuda:1`` becomes device 1; a device that is not CUDA's takes the first free number. Labels
    become ``user_metadata``. Frames are shared between events, as torch shares them.

    Raises:
        MissingError: a trace has no state at its end, so there are no segments to write.
    """
    numbers = _device_numbers(traces)
    devices: list[list[dict[str, Any]]] = [[] for _ in range(max(numbers, default=-1) + 1)]
    segments: list[dict[str, Any]] = []
    for number, trace in sorted(zip(numbers, traces, strict=True), key=lambda pair: pair[0]):
        if trace.end is None:
            hint = "the recording was cut short: export another window of the run"
            raise MissingError(f"{trace.device}: the state at the end is missing", hint)
        writer = _SnapshotWriter(trace.tables)
        devices[number] = writer.events(trace)
        segments += writer.segments(trace.end, number)
    settings = dict(traces[0].settings) if traces else {}
    return {
        "segments": segments,
        "device_traces": devices,
        "allocator_settings": settings,
        "external_annotations": _annotations(numbers, traces),
    }


def _device_numbers(traces: Sequence[Trace]) -> list[int]:
    numbers = [_cuda_number(trace.device) for trace in traces]
    used_numbers = {number for number in numbers if number is not None}
    free = (
        number for number in range(len(traces) + len(used_numbers)) if number not in used_numbers
    )
    return [next(free) if number is None else number for number in numbers]


def _cuda_number(device: str) -> int | None:
    kind, _, number = device.partition(":")
    return int(number or 0) if kind == "cuda" else None


class _SnapshotWriter:
    """Events and segments of one trace, with one dict a frame and one list a stack."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        frames = [{"name": f.name, "filename": f.filename, "line": f.line} for f in tables.frames]
        self._stacks = [[frames[index] for index in stack] for stack in tables.stacks]
        self._labels = [_metadata(label) for label in tables.labels]

    def events(self, trace: Trace) -> list[dict[str, Any]]:
        """``device_traces`` of the device; events of unknown kinds are left out."""
        rows = zip(*(_as_list(column) for column in _columns(trace)), strict=True)
        return [self._event(*row) for row in rows if row[0] in _ACTIONS]

    def _event(
        self,
        action: int,
        address: int,
        size: int,
        stream: int,
        time_us: int,
        stack: int,
        label: int,
        pool: int,
    ) -> dict[str, Any]:
        entry = {
            "action": _ACTIONS[action],
            "device_free" if action == Action.OOM else "addr": address,
            "size": size,
            "stream": stream,
            "time_us": max(time_us, 0),
            "compile_context": "N/A",
            "user_metadata": self._labels[label],
            "pool_id": self._tables.pools[max(pool, 0)],
        }
        if stack:
            entry["frames"] = self._stacks[stack]
        return entry

    def segments(self, state: State, device: int) -> list[dict[str, Any]]:
        """``segments`` of the device, with their blocks."""
        blocks: list[list[dict[str, Any]]] = [[] for _ in range(len(state.segments))]
        block_columns = state.blocks
        columns = (
            block_columns.address,
            block_columns.size,
            block_columns.requested,
            block_columns.state,
            block_columns.segment,
            block_columns.stack,
        )
        for address, size, requested, status, segment, stack in zip(
            *map(_as_list, columns), strict=True
        ):
            if segment >= 0:
                entry = {
                    "address": address,
                    "size": size,
                    "requested_size": requested,
                    "state": _STATES[status],
                    "frames": self._stacks[stack],
                }
                blocks[segment].append(entry)
        return [self._segment(state, row, device, own) for row, own in enumerate(blocks)]

    def _segment(
        self, state: State, row: int, device: int, blocks: list[dict[str, Any]]
    ) -> dict[str, Any]:
        segments = state.segments
        in_use = [b for b in blocks if b["state"] == "active_allocated"]
        active = [b for b in blocks if b["state"] != "inactive"]
        small = int(segments.kind[row]) == SegmentKind.SMALL
        return {
            "device": device,
            "address": int(segments.address[row]),
            "total_size": int(segments.size[row]),
            "allocated_size": sum(b["size"] for b in in_use),
            "active_size": sum(b["size"] for b in active),
            "requested_size": sum(b["requested_size"] for b in active),
            "stream": int(segments.stream[row]),
            "segment_type": "small" if small else "large",
            "segment_pool_id": self._tables.pools[max(int(segments.pool[row]), 0)],
            "is_expandable": bool(segments.expandable[row]),
            "frames": self._stacks[int(segments.stack[row])],
            "blocks": blocks,
        }


def _columns(trace: Trace) -> tuple[Column, ...]:
    events = trace.events
    return (
        events.action,
        events.address,
        events.size,
        events.stream,
        events.time_us,
        events.stack,
        events.label,
        events.pool,
    )


def _as_list(values: Column) -> list[int]:
    rows: list[int] = values.tolist()
    return rows


def _metadata(label: Label) -> str:
    """A label as one line: ``step 3, forward, GPT.blocks.0, my annotation``."""
    parts = [f"step {label.step}"] if label.step >= 0 else []
    parts += [label.phase.name.lower()] if label.phase != Phase.UNKNOWN else []
    return ", ".join([*parts, *filter(None, (label.module, label.annotation))])


def _annotations(numbers: Sequence[int], traces: Sequence[Trace]) -> list[dict[str, Any]]:
    entries = []
    for number, trace in zip(numbers, traces, strict=True):
        for note in trace.annotations:
            for stage, time_us in (("START", note.start_us), ("END", note.end_us)):
                if time_us >= 0:
                    entry = {"name": note.name, "stage": stage, "device": number}
                    entries.append({**entry, "time_us": time_us})
    return sorted(entries, key=lambda entry: entry["time_us"])
