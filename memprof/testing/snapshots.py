"""Traces as the snapshots that torch would have written, in the schema of every version since 2.0.

What a version does not write is left out, so a trace comes back from 2.0 with less than it had.
"""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from memprof.trace import NOT_RECORDED, Action, BlockState, SegmentKind, State, Tables, Trace

__all__ = ["SNAPSHOT_VERSIONS", "save_snapshot", "segments_only", "snapshot"]

SNAPSHOT_VERSIONS = tuple(f"2.{minor}" for minor in range(16))
"""The versions of torch whose schema `snapshot` writes."""

_Json: TypeAlias = "dict[str, Any]"


def snapshot(*traces: Trace, torch: str = "2.13") -> _Json:
    """What ``torch.cuda.memory._snapshot()`` of that version returns after these traces.

    Every trace needs its end, and a device named ``cuda:N``. As torch does, an allocation, its
    block and its frees share one list of frames.
    """
    since = SNAPSHOT_VERSIONS.index(torch)
    by_device = {int(trace.device.removeprefix("cuda:")): trace for trace in traces}
    writers = {device: _SchemaWriter(trace, device, since) for device, trace in by_device.items()}
    data: _Json = {
        "segments": [s for _, w in sorted(writers.items()) for s in w.segments()],
        "device_traces": [
            writers[device].events() if device in writers else []
            for device in range(max(by_device, default=-1) + 1)
        ],
    }
    if since >= 2:
        data["allocator_settings"] = _settings(traces[0].settings if traces else {}, since)
    if since >= 5:
        data["external_annotations"] = [a for w in writers.values() for a in w.annotations()]
    if since >= 14:
        data |= {"host_segments": [], "host_traces": []}
    return data


def segments_only(*traces: Trace, torch: str = "2.13") -> list[_Json]:
    """What the public ``torch.cuda.memory_snapshot()`` returns: a bare list, without events."""
    segments: list[_Json] = snapshot(*traces, torch=torch)["segments"]
    return segments


def save_snapshot(path: str | Path, data: object, protocol: int = 4) -> Path:
    """Pickle ``data`` to ``path``, gzipped where the name ends in ``.gz``; returns the path."""
    path = Path(path)
    content = pickle.dumps(data, protocol)
    path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else content)
    return path


def _settings(settings: Mapping[str, Any], since: int) -> _Json:
    settings_of_version: _Json = {
        "PYTORCH_CUDA_ALLOC_CONF": "",
        "max_split_size": -1,
        "garbage_collection_threshold": 0.0,
        "expandable_segments": False,
        "roundup_power2_divisions": {str(1 << i): 0 for i in range(16)},
    }
    if since >= 9:
        settings_of_version["graph_capture_record_stream_reuse"] = False
    if since >= 13:
        settings_of_version["max_cached_size"] = -1
    return settings_of_version | dict(settings)


class _SchemaWriter:
    """One trace in the schema of torch 2.``since``."""

    def __init__(self, trace: Trace, device: int, since: int) -> None:
        if trace.end is None:
            raise ValueError("a snapshot has the state at its end: build(end=True)")
        self._trace, self._end = trace, trace.end
        self._device, self._since = device, since
        self._frames = [
            {"name": f.name, "filename": f.filename, "line": f.line} for f in trace.tables.frames
        ]
        self._stacks = [[self._frames[i] for i in stack] for stack in trace.tables.stacks]

    def segments(self) -> list[_Json]:
        columns = self._end.segments
        return [self._segment(row) for row in range(len(columns))]

    def _segment(self, row: int) -> _Json:
        columns = self._end.segments
        blocks = [b for b in range(len(self._end.blocks)) if self._end.blocks.segment[b] == row]
        segment: _Json = {
            "device": self._device,
            "address": int(columns.address[row]),
            "total_size": int(columns.size[row]),
            "allocated_size": _bytes_in(self._end, blocks, BlockState.ACTIVE_ALLOCATED),
            "active_size": _bytes_in(self._end, blocks, *list(BlockState)[1:]),
            "stream": int(columns.stream[row]),
            "segment_type": SegmentKind(int(columns.kind[row])).name.lower(),
            "blocks": [self._block(block) for block in blocks],
        }
        if self._since >= 1:
            segment["segment_pool_id"] = self._trace.tables.pools[int(columns.pool[row])]
            segment["is_expandable"] = bool(columns.expandable[row])
            segment["requested_size"] = int(self._end.blocks.requested[blocks].sum())
        if self._since >= 2:
            segment["frames"] = self._stacks[columns.stack[row]]
        return segment

    def _block(self, row: int) -> _Json:
        columns = self._end.blocks
        state = BlockState(int(columns.state[row]))
        frames = self._stacks[columns.stack[row]]
        requested, address = int(columns.requested[row]), int(columns.address[row])
        block: _Json = {"size": int(columns.size[row]), "state": state.name.lower()}
        if self._since >= 1:
            return block | {"address": address, "requested_size": requested, "frames": frames}
        if state != BlockState.INACTIVE:
            block["history"] = [{"addr": address, "real_size": requested, "frames": frames}]
        return block

    def events(self) -> list[_Json]:
        return [self._event(row) for row in range(len(self._trace.events))]

    def _event(self, row: int) -> _Json:
        columns, tables = self._trace.events, self._trace.tables
        action = Action(int(columns.action[row]))
        key = "device_free" if action is Action.OOM else "addr"
        event: _Json = {
            "action": action.name.lower(),
            key: int(columns.address[row]),
            "size": int(columns.size[row]),
            "stream": int(columns.stream[row]),
        }
        if self._since >= 2 and columns.time_us[row] != NOT_RECORDED:
            event["time_us"] = int(columns.time_us[row])
        if self._since >= 8:
            event["compile_context"] = "N/A"
        if self._since >= 10:
            event["user_metadata"] = self._metadata(tables, int(columns.label[row]))
        if self._since >= 12:
            event["pool_id"] = tables.pools[max(int(columns.pool[row]), 0)]
        if columns.stack[row]:
            event["frames"] = self._stacks[columns.stack[row]]
        return event

    def _metadata(self, tables: Tables, label: int) -> str | _Json:
        text = tables.labels[label].annotation
        return {"name": text} if text and self._since >= 15 else text

    def annotations(self) -> list[_Json]:
        marks = [
            {"name": a.name, "stage": stage, "device": self._device, "time_us": time_us}
            for a in self._trace.annotations
            for stage, time_us in (("START", a.start_us), ("END", a.end_us))
            if time_us != NOT_RECORDED
        ]
        return sorted(marks, key=lambda mark: int(mark["time_us"]))


def _bytes_in(state: State, blocks: list[int], *states: BlockState) -> int:
    return sum(int(state.blocks.size[b]) for b in blocks if state.blocks.state[b] in states)
