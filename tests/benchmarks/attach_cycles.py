"""A job that is attached to and detached from many times: its losses, its memory, what it stands.

    python tests/benchmarks/attach_cycles.py [--cycles 500] [--inject 120] [--remote 500]

``--cycles`` asks a process that stands by; ``--inject`` goes in by gdb so often, each time anew, and
``--remote`` by ``sys.remote_exec``, on Python 3.14. The exit status is 1 where the losses are not
those of a job that was left alone, something is left behind, or memory has grown over the second
half of the cycles.
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


_LEVEL_MIB = 8
"""What resident memory may differ by between the middle of the cycles and their end."""


def measure(folder: Path, cycles: int, way: str) -> bool:
    """Attach and detach so often, and say what became of the job; whether all is well.

    ``way`` is ``socket``, ``gdb`` or ``remote_exec``.
    """
    enters, inject = way != "socket", way == "gdb"
    given = {"environment": FOREIGN} if enters else {"script": STANDBY}
    words = ("-S",) if enters else ()
    begun_s, ended_s, resident = [], [], []
    with Job(folder, *words, **given) as job:
        for _ in range(cycles):
            at = time.perf_counter()
            begin(
                job.pid,
                {"path": str(folder / "run.json"), "allowance_s": 0.1},
                inject=inject,
                timeout_s=120,
            )
            begun_s.append(time.perf_counter() - at)
            time.sleep(0.01)
            at = time.perf_counter()
            end(job.pid, timeout_s=120)
            ended_s.append(time.perf_counter() - at)
            resident.append(job.resident_bytes / 2**20)
            while enters and job.runs and _listens(job):
                time.sleep(0.01)
        told = job.end()
    steps = len(told["losses"])
    with Job(folder, *words, steps=steps, **given) as other:
        is_same = other.end(timeout_s=3600)["losses"] == told["losses"]
    print(
        f"{cycles} cycles by {way}, {steps:,} steps: losses "
        f"{'bit-equal' if is_same else 'DIFFER'}; left behind: {changes(told) or 'nothing'}"
    )
    tenth = max(1, cycles // 10)
    grown = statistics.median(resident[-tenth:]) - statistics.median(
        resident[cycles // 2 :][:tenth]
    )
    print(
        f"  attach takes {statistics.median(begun_s):.2f} s, detach "
        f"{statistics.median(ended_s):.2f} s (median); resident MiB after each tenth: "
        + ", ".join(f"{one:.0f}" for one in resident[tenth - 1 :: tenth])
        + f"; grown by {grown:.1f} MiB over the second half",
        flush=True,
    )
    return is_same and not changes(told) and grown < _LEVEL_MIB


def _listens(job: Job) -> bool:
    try:
        end(job.pid)
    except MemprofError as error:
        return "is not recorded by memprof attach" not in error.message
    return True


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cycles", type=int, default=500)
    parser.add_argument("--inject", type=int, default=0)
    parser.add_argument("--remote", type=int, default=0)
    asked = parser.parse_args()
    wanted = (("socket", asked.cycles), ("gdb", asked.inject), ("remote_exec", asked.remote))
    with tempfile.TemporaryDirectory() as name:
        is_well = [measure(Path(name), n, way) for way, n in wanted if n]
    sys.exit(0 if all(is_well) else 1)
