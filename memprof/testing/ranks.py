"""Run files of the ranks of a job without the job: header, footer, and what is to lie between."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from memprof.records import DeviceSummary, Footer, Header, Interim, Record, StepColumns
from memprof.runfile.writer import RunWriter
from memprof.testing.runs import run_records
from memprof.trace import NOT_RECORDED, Trace

__all__ = ["write_rank"]

_STARTED_US = 1_700_000_000_000_000
_GIB = 1 << 30


def write_rank(
    folder: str | Path,
    rank: int,
    world_size: int,
    *traces: Trace,
    name: str = "",
    argv: Sequence[str] = ("train.py",),
    started_us: int = _STARTED_US,
    lasted_us: int = 60_000_000,
    device: str = "cuda:0",
    peak: int = 8 * _GIB,
    reserved: int = 9 * _GIB,
    total: int = 80 * _GIB,
    outside: int = NOT_RECORDED,
    bytes_per_step: float | None = 0.0,
    rising: float = 0.5,
    full_step: int = NOT_RECORDED,
    full_left_us: int = NOT_RECORDED,
    ooms: int = 0,
    step_us: int = 300_000,
    step_count: int = 100,
    steps: StepColumns | None = None,
    status: str = "ok",
    ending: str = "footer",
    more: Sequence[Record] = (),
) -> Path:
    """One file, ``run.rank3.json`` unless it has a ``name``; bytes and microseconds.

    Args:
        folder: where to.
        rank: of ``world_size``.
        traces: windows, if there is to be something to look for findings in.
        ending: ``footer``; ``interim`` for a job that was killed; ``none`` for one that was killed
            before it was summed up. The other keywords are what is said there.
        steps: counters of the first trace's device.
        more: further records.
    """
    header, *between, _ = run_records(*traces, steps=steps, more=more)
    assert isinstance(header, Header)
    mine = msgspec.structs.replace(
        header, argv=list(argv), rank=rank, world_size=world_size, created_us=started_us
    )
    figures = DeviceSummary(
        device=device,
        peak_allocated_bytes=peak,
        peak_reserved_bytes=reserved,
        total_bytes=total,
        outside_bytes=outside,
        bytes_per_step=bytes_per_step,
        rising=rising,
        ooms=ooms,
        full_step=full_step,
        full_left_us=full_left_us,
    )
    path = Path(folder, name or f"run.rank{rank}.json")
    writer = RunWriter(path, mine)
    for record in between:
        writer.write(record)
    ended_us = started_us + lasted_us
    if ending == "footer":
        writer.close(Footer(ended_us, step_count, [figures], status=status, step_us=step_us))
        return path
    if ending == "interim":
        writer.write(Interim(ended_us, step_count, [figures], step_us=step_us))
    writer.flush()
    writer.close()
    return path
