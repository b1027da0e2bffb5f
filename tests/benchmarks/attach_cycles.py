"""A job that is attached to and detached from many times: its losses, its memory, what it stands.

    python tests/benchmarks/attach_cycles.py [--cycles 500] [--inject 20]

``--inject`` goes in by gdb so often, each time anew; the other cycles ask a process that stands by.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from memprof.attach.recordings import begin, end
from memprof.errors import MemprofError
from tests.attach.jobs import FOREIGN, TRAINING, Job, changes

STANDBY = f"import memprof; memprof.start(standby=True)\n{TRAINING}"


def measure(folder: Path, cycles: int, *, inject: bool) -> None:
    """Attach and detach so often, and say what became of the job."""
    given = {"environment": FOREIGN} if inject else {"script": STANDBY}
    words = ("-S",) if inject else ()
    begun_s, ended_s, resident = [], [], []
    with Job(folder, *words, **given) as job:
        for n in range(cycles):
            at = time.perf_counter()
            begin(job.pid, {"path": str(folder / "run.json"), "allowance_s": 0.1}, inject=inject)
            begun_s.append(time.perf_counter() - at)
            time.sleep(0.01)
            at = time.perf_counter()
            end(job.pid)
            ended_s.append(time.perf_counter() - at)
            if n % max(1, cycles // 5) == cycles // 5 - 1:
                resident.append(job.resident_bytes / 2**20)
            while inject and job.runs and _listens(job):
                time.sleep(0.01)
        told = job.end()
    steps = len(told["losses"])
    given = {"environment": FOREIGN} if inject else {"script": STANDBY}
    with Job(folder, *words, steps=steps, **given) as other:
        is_same = other.end()["losses"] == told["losses"]
    print(
        f"{cycles} cycles {'by gdb' if inject else 'by the socket'}, {steps:,} steps: losses "
        f"{'bit-equal' if is_same else 'DIFFER'}; left behind: {changes(told) or 'nothing'}"
    )
    print(
        f"  attach takes {statistics.median(begun_s):.2f} s, detach "
        f"{statistics.median(ended_s):.2f} s (median); resident MiB after each fifth: "
        + ", ".join(f"{one:.0f}" for one in resident)
    )


def _listens(job: Job) -> bool:
    try:
        end(job.pid)
    except MemprofError as error:
        return "is not recorded by memprof attach" not in error.message
    return True


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cycles", type=int, default=500)
    parser.add_argument("--inject", type=int, default=20)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if asked.cycles:
            measure(Path(name), asked.cycles, inject=False)
        if asked.inject:
            measure(Path(name), asked.inject, inject=True)
