"""Replay of a million events over ``pickle.load`` of the same file, and a what-if on two cores.

A recorded training step (from ../shared/snapshots where that is there, else made up) is run again
and again on the model, written as a snapshot, read and replayed.

    python tests/benchmarks/bench_replay.py [events]
"""

from __future__ import annotations

import gc
import os
import pickle
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from memprof.allocator import (
    CachingAllocator,
    Recorder,
    TieBreak,
    parse_settings,
    replay_recorded,
    workload_of,
)
from memprof.snapshot.reader import load_snapshot
from memprof.snapshot.writer import torch_snapshot
from memprof.testing import TraceBuilder
from memprof.trace import Action, Trace
from memprof.what_if.candidate_settings import SEARCHED
from memprof.what_if.parallel import Job, played

RECORDED = Path(__file__).parents[3] / "shared" / "snapshots" / "gpt-medium-128-training.pickle"
BUDGET_BYTES_PER_EVENT = 500

Result = TypeVar("Result")


def timed(call: Callable[[], Result]) -> tuple[float, Result]:
    """Seconds and result of a call, with a clean collector before it."""
    gc.collect()
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def recorded_step() -> Trace:
    """One training step as a GPU recorded it; a made-up one where none is at hand."""
    if RECORDED.exists():
        return load_snapshot(RECORDED)[0]
    builder = TraceBuilder("cuda:0")
    for number in range(3000):
        size = ((number * 7919) % 4096 + 1) * 2048
        builder = builder.alloc(size, f"tensor {number}").free(f"tensor {number}")
    return builder.build()


def tiled(events: int) -> Trace:
    """The step again and again, until there are ``events`` events, with its stacks."""
    recording = Recorder(CachingAllocator(tie_break=TieBreak.ADDRESS))
    step = recorded_step()
    columns = (step.events.action, step.events.address, step.events.size, step.events.stack)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    stacks: list[int] = []
    while len(recording) < events:
        live: dict[int, int] = {}
        for action, key, size, stack in rows:
            if action == Action.ALLOC:
                address = recording.alloc(size)
                assert address is not None
                live[key] = address
            elif action == Action.FREE_REQUESTED and key in live:
                recording.free(live.pop(key))
            stacks += [stack] * (len(recording) - len(stacks))
        for address in live.values():
            recording.free(address)
        stacks += [0] * (len(recording) - len(stacks))
    trace = recording.trace(torch_version="2.11")
    stack = np.array(stacks, dtype=np.int32)
    return replace(trace, tables=step.tables, events=replace(trace.events, stack=stack))


def write_as_torch(path: Path, trace: Trace) -> None:
    """As torch writes it: a list of frames of its own for every stack that was captured."""
    data = torch_snapshot([trace])
    for entry in data["device_traces"][0]:
        if "frames" in entry and entry["action"] != "free_completed":
            entry["frames"] = list(entry["frames"])
    with path.open("wb") as file:
        pickle.dump(data, file, protocol=4)


def peak_mib() -> float:
    """The most resident memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def replayed_memory(trace: Trace) -> float:
    """Bytes an event that a replay adds to the process, measured in a child of its own."""
    read, write = os.pipe()
    if os.fork() == 0:
        before = peak_mib()
        replay_recorded(trace)
        os.write(write, str((peak_mib() - before) * 2**20 / len(trace.events)).encode())
        os._exit(0)
    os.wait()
    return float(os.read(read, 64))


def main() -> None:
    """Print the figures side by side."""
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "million.pickle"
        trace = tiled(events)
        write_as_torch(path, trace)
        size = path.stat().st_size / 2**20
        print(f"{len(trace.events):,} events, {size:.0f} MiB")
        del trace
        loading, data = timed(lambda: _load(path))
        del data
        reading, (trace,) = timed(lambda: load_snapshot(path))
    memory = replayed_memory(trace)
    replaying, replay = timed(lambda: replay_recorded(trace))
    print(f"pickle.load            {loading:6.2f} s")
    print(f"load_snapshot          {reading:6.2f} s   {reading / loading:5.2f} x")
    ratio = replaying / loading
    print(f"replay                 {replaying:6.2f} s   {ratio:5.2f} x   (wanted: at most 1 x)")
    print(f"memory of the replay   {memory:6.0f} bytes an event (wanted: {BUDGET_BYTES_PER_EVENT})")
    print(f"exact                  {replay.exact:,} of {replay.allocs:,}")
    what_if(trace)


def _load(path: Path) -> Any:
    with path.open("rb") as file:
        return pickle.load(file)


def what_if(trace: Trace) -> None:
    """Twelve configurations on one core and on all."""
    workload = workload_of(trace)
    jobs = [Job(0, parse_settings(text)) for text in ("", *SEARCHED)]
    alone, first = timed(lambda: played([workload], jobs, 1))
    cores = len(os.sched_getaffinity(0))
    together, second = timed(lambda: played([workload], jobs, cores))
    assert first == second
    print(f"{len(jobs)} configurations      {alone:6.2f} s on one core")
    print(
        f"                       {together:6.2f} s on {cores}   {alone / together:5.2f} x as fast"
    )


if __name__ == "__main__":
    main()
