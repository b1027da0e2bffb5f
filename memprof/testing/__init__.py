"""Builders of small traces, snapshots and run files, for our tests and users'; nothing measures.

>>> trace = TraceBuilder().existing(1024, "weight").alloc(4096, "x").free("x").build()
>>> save_snapshot("snapshot.pickle", snapshot(trace))
>>> write_run("run.json", trace)
"""

from __future__ import annotations

from memprof.testing.ranks import write_rank
from memprof.testing.runs import run_records, step_columns, write_run
from memprof.testing.snapshots import SNAPSHOT_VERSIONS, save_snapshot, segments_only, snapshot
from memprof.testing.traces import TraceBuilder

__all__ = [
    "SNAPSHOT_VERSIONS",
    "TraceBuilder",
    "run_records",
    "save_snapshot",
    "segments_only",
    "snapshot",
    "step_columns",
    "write_rank",
    "write_run",
]
