"""How long memprof takes to begin and to end, and how long its command takes to answer.

Wanted: the first record is made within 50 ms of torch's own import, whichever of the two comes
first; a short run ends within a second; ``memprof --help`` takes under half of ``import plotly``.
The first two are told in processor time as well: on a busy machine the clock says more about the
others. The first record is that of the open window: from then on every allocation is recorded.
After it come the first readings of the driver and the host.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

ROUNDS = 5
BEGIN_MS, END_MS, HELP_SHARE = 50.0, 1000.0, 0.5
AIMS = {"first record": BEGIN_MS, "end of a short run": END_MS}

_CLOCKS = """
import sys, time
def clocks():
    return time.perf_counter() * 1e3, time.process_time() * 1e3
def tell(name, since):
    print(name, *(now - then for now, then in zip(clocks(), since)))
path = sys.argv[1]
"""
_TRAIN = """
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    model(torch.ones(4, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
since = clocks()
tracker.stop()
tell("end of a short run", since)
"""
_FIRST_RECORD = """
from memprof.record.session import Session
then = Session.open_samplers
def first_record(self):
    tell("first record, torch imported first", since)
    then(self)
Session.open_samplers = first_record
"""
TORCH_FIRST = f"""{_CLOCKS}
import torch
since = clocks()
import memprof
tell("import memprof", since)
tracker = memprof.track(path)
{_FIRST_RECORD}
tracker.start()
tell("track() returns, torch imported first", since)
{_TRAIN}
"""
MEMPROF_FIRST = f"""{_CLOCKS}
import memprof
tracker = memprof.track(path).start()
import importlib.util
spec = importlib.util.find_spec("torch")
class Timed:
    def __init__(self, loader):
        self.loader = loader
    def __getattr__(self, name):
        return getattr(self.loader, name)
    def exec_module(self, module):
        global since
        self.loader.exec_module(module)
        since = clocks()
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "torch" or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        spec.loader = Timed(spec.loader)
        return spec
sys.meta_path.insert(1, Finder())  # behind memprof's own, which it wraps
import torch
tell("first record, memprof started first", since)
{_TRAIN}
"""
"""torch's own import ends before memprof is told of it; both clocks are read in between."""


def seconds(*arguments: str) -> float:
    """Wall time of one fresh interpreter."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    return time.perf_counter() - start


def told_by(program: str, folder: Path) -> dict[str, tuple[float, float]]:
    """Milliseconds by the clock and of the processor that a fresh interpreter prints."""
    # Byte code is kept, as it is wherever memprof is installed.
    kept = {"PYTHONPYCACHEPREFIX": str(folder), "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder / "run.json")],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | kept,
    )
    rows = [line.rsplit(" ", 2) for line in done.stdout.splitlines()]
    return {name: (float(wall), float(processor)) for name, wall, processor in rows}


def begin_and_end() -> None:
    """Measure both orders of import in turns, and print the medians beside the aims."""
    found: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        for number in range(ROUNDS + 1):
            for program in (TORCH_FIRST, MEMPROF_FIRST):
                for what, times in told_by(program, Path(name)).items():
                    if number:  # in the first everything is compiled
                        found.setdefault(what, []).append(times)
    for what, times in found.items():
        wall, processor = (statistics.median(column) for column in zip(*times, strict=True))
        told = f"{what:38} {wall:6.0f} ms by the clock, {processor:6.0f} ms of the processor"
        aim = next((aim for name, aim in AIMS.items() if what.startswith(name)), None)
        if aim is None:
            print(told)
            continue
        met = "met" if processor <= aim else "not met"
        print(f"{told}; the aim is at most {aim:.0f} ms: {met}")


def answer() -> None:
    """Measure in turns, so that both meet the same machine, and print medians and their ratio."""
    programs = {
        "python -c pass": ("-c", "pass"),
        "memprof --help": ("-m", "memprof_cli", "--help"),
        "import memprof, alone": ("-c", "import memprof"),
        "import plotly.graph_objects": ("-c", "import plotly.graph_objects"),
    }
    times: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(ROUNDS):
        for name, arguments in programs.items():
            times[name].append(seconds(*arguments))
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, value in medians.items():
        print(f"{name:32} {value * 1e3:6.0f} ms")
    ratio = medians["memprof --help"] / medians["import plotly.graph_objects"]
    met = "met" if ratio <= HELP_SHARE else "not met"
    print(f"help takes {ratio:.2f} of plotly's import; the aim is at most {HELP_SHARE}: {met}")


def main() -> None:
    """Print where this is, and all figures."""
    date = f"{datetime.now(timezone.utc):%Y-%m-%d}"
    versions = f"torch {metadata.version('torch')}, Python {platform.python_version()}"
    print(f"{versions}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {date}")
    measurements: tuple[Callable[[], None], ...] = (begin_and_end, answer)
    for measure in measurements:
        measure()


if __name__ == "__main__":
    main()
