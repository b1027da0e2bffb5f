"""What `memprof report` costs on a thousand ranks, beside reading their files as they are."""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

from processes import REPORTS, measured

from memprof.testing import TraceBuilder, write_rank
from memprof.trace import Phase

GIB = 1 << 30
MIB = 1 << 20
PROGRAMS = {
    "read the files": "import pathlib, sys; [p.read_bytes() for p in pathlib.Path(sys.argv[1]).iterdir()]",
    **REPORTS,
}


def write_job(folder: Path, ranks: int, steps: int, *, closed: bool) -> None:
    """Ranks with a window of ``steps`` steps of 40 tensors; one has a higher peak."""
    builder = TraceBuilder(step_us=100).existing(64 * MIB, "weights")
    for step in range(steps):
        builder.label(step=step, phase=Phase.FORWARD)
        for number in range(40):
            builder.alloc((number % 7 + 1) * MIB, f"{step}.{number}")
        for number in range(40):
            builder.free(f"{step}.{number}")
    trace = builder.build()
    for rank in range(ranks):
        peak = (60 if rank == 17 else 40) * GIB
        ending = "footer" if closed else "interim"
        write_rank(folder, rank, ranks, trace, peak=peak, reserved=61 * GIB, ending=ending)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for closed in (True, False):
        with tempfile.TemporaryDirectory() as scratch:
            folder, page = Path(scratch) / "job", Path(scratch) / "page.html"
            folder.mkdir()
            write_job(folder, options.ranks, options.steps, closed=closed)
            size = sum(file.stat().st_size for file in folder.iterdir()) / MIB
            ended = "ended in good order" if closed else "were killed"
            print(f"{options.ranks:,} ranks that {ended}, {size:.0f} MiB on disk")
            taken: dict[str, list[tuple[float, float]]] = {name: [] for name in PROGRAMS}
            for _ in range(options.rounds):  # in turn, so that a busy moment hits all of them
                for name, figures in taken.items():
                    figures.append(measured(PROGRAMS[name], folder, page))
            for name, figures in taken.items():
                seconds = statistics.median(s for s, _ in figures)
                peak = max(mib for _, mib in figures)
                print(f"{name:24} {seconds:6.2f} s  peak {peak:6.0f} MiB")
            print(f"the page: {page.stat().st_size / MIB:.2f} MiB")


if __name__ == "__main__":
    main()
