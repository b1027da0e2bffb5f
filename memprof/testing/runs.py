"""Run files without a job: the records that a tracker would have written for given traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from memprof.records import (
    SCHEMA_VERSION,
    DeviceInfo,
    DeviceSummary,
    Footer,
    Header,
    Record,
    StateRecord,
    StepColumns,
    StepsRecord,
    TablesRecord,
    TraceRecord,
)
from memprof.runfile.writer import RunWriter, encode_state, encode_trace
from memprof.trace import (
    NOT_RECORDED,
    Blocks,
    Column,
    Events,
    Segments,
    State,
    Tables,
    Trace,
)

__all__ = ["run_records", "step_columns", "write_run"]

_Rows = TypeVar("_Rows", Events, Segments, Blocks)
_Columnar = TypeVar("_Columnar", TraceRecord, StateRecord)
_CREATED_US = 1_700_000_000_000_000


def write_run(
    path: str | Path,
    *traces: Trace,
    steps: StepColumns | None = None,
    more: Sequence[Record] = (),
) -> Path:
    """A closed run file of ``traces``, in order of time; several of one device are its windows.

    Args:
        path: where to; ``.gz`` compresses.
        traces: what the windows hold.
        steps: counters of the first trace's device.
        more: further records (readings, findings, notes), put before the footer.
    """
    records = run_records(*traces, steps=steps, more=more)
    header, footer = records[0], records[-1]
    assert isinstance(header, Header)
    assert isinstance(footer, Footer)
    writer = RunWriter(path, header)
    for record in records[1:-1]:
        writer.write(record)
    writer.close(footer)
    return Path(path)


def run_records(
    *traces: Trace, steps: StepColumns | None = None, more: Sequence[Record] = ()
) -> list[Record]:
    """The records of such a file, header first and footer last."""
    devices = {t.device: DeviceInfo(t.device, settings=dict(t.settings)) for t in traces}
    records: list[Record] = [
        Header(schema=SCHEMA_VERSION, created_us=_CREATED_US, devices=list(devices.values()))
    ]
    first, windows = (0, 1, 1, 1), dict.fromkeys(devices, 0)
    for trace in traces:
        records += _window(trace, windows[trace.device], first)
        windows[trace.device] += 1
        first = _after(first, trace.tables)
    if steps is not None and traces:
        records.append(StepsRecord(traces[0].device, steps))
    return [*records, *more, Footer(ended_us=_CREATED_US, devices=_summaries(traces))]


def step_columns(**columns: Sequence[int]) -> StepColumns:
    """Counters of single steps numbered from 0; columns that are not given are -1 throughout."""
    length = len(next(iter(columns.values()), ()))
    names = StepColumns.__struct_fields__
    columns_in_full = {name: [NOT_RECORDED] * length for name in names}
    columns_in_full |= {"first": list(range(length)), "last": list(range(length))}
    return StepColumns(**columns_in_full | {name: list(values) for name, values in columns.items()})


def _window(trace: Trace, number: int, first: tuple[int, int, int, int]) -> Iterator[Record]:
    """One window's records; its trace's rows of the tables are numbered on from ``first``."""
    tables, (frame, stack, label, pool) = trace.tables, first
    yield TablesRecord(
        first=first,
        frames=[(f.name, f.filename, f.line) for f in tables.frames],
        stacks=[[i + frame for i in s] for s in tables.stacks[1:]],
        labels=[(x.step, int(x.phase), x.module, x.annotation) for x in tables.labels[1:]],
        pools=list(tables.pools[1:]),
    )
    by = {"stack": stack - 1, "label": label - 1, "pool": pool - 1}
    if trace.start is not None:
        yield _as_read(encode_state(trace.device, number, "start", _moved_state(trace.start, by)))
    yield _as_read(encode_trace(trace.device, number, 0, _move(trace.events, by)))
    if trace.end is not None:
        yield _as_read(encode_state(trace.device, number, "end", _moved_state(trace.end, by)))


def _as_read(record: _Columnar) -> _Columnar:
    """The record as a reader gets it: with lists."""
    builtins = msgspec.to_builtins(record, enc_hook=lambda column: column.tolist())
    return msgspec.convert(builtins, type(record))


def _after(first: tuple[int, int, int, int], tables: Tables) -> tuple[int, int, int, int]:
    frame, stack, label, pool = first
    return (
        frame + len(tables.frames),
        stack + len(tables.stacks) - 1,
        label + len(tables.labels) - 1,
        pool + len(tables.pools) - 1,
    )


def _moved_state(state: State, by: dict[str, int]) -> State:
    return replace(state, segments=_move(state.segments, by), blocks=_move(state.blocks, by))


def _move(columns: _Rows, by: dict[str, int]) -> _Rows:
    """The same rows, pointing ``by`` rows further into the tables; 0 and -1 stay."""
    names = [name for name in by if name in columns.names()]
    return replace(columns, **{n: _shift(getattr(columns, n), by[n]) for n in names})


def _shift(column: Column, by: int) -> Column:
    return np.where(column > 0, column + by, column)


def _summaries(traces: Sequence[Trace]) -> list[DeviceSummary]:
    last = {trace.device: trace for trace in traces}
    return [
        DeviceSummary(
            device,
            allocated_bytes=trace.end.allocated if trace.end else NOT_RECORDED,
            reserved_bytes=trace.end.reserved if trace.end else NOT_RECORDED,
            events=sum(len(t.events) for t in traces if t.device == device),
        )
        for device, trace in last.items()
    ]
