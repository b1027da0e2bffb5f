"""What memprof costs on a GPU, beside torch's own recorder and its profiler, in turns in one run.

Without a CUDA device it says so; ``--dry-run`` runs the same code on a CPU, with programs so small
that their figures say nothing. The last lines are a table for docs/gpu-results.md. Each program has
a process of its own, and what was measured stays when it dies; the profiler comes last there, as
what it starts in the driver stays on and would slow the others down.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import product
from pathlib import Path
from statistics import median

import torch
from cuda_programs import DRY, WANTED, Step, gpt, resnet, tiny

import memprof

DEFAULT_TARGET, WINDOW_TARGET = 1.01, 1.2
DEADLINE_S = 7 * 60
"""No further measurement begins after this; each program has its share of what is left."""
GRACE_S = 60
"""Beyond its share, for what it began; then a program is ended."""
RING = 100_000
"""Entries that torch's recorder keeps."""
THEIRS, READ = "torch's recorder, Python stacks", "torch's recorder, read once"
LAST = "torch.profiler with memory"
PROFILED_STEPS = 10
"""The profiler keeps everything until it stops, so it gets few steps."""
PROGRAMS = {
    "GPT-2 small, bf16, a third of the card": gpt,
    "ResNet-50, bf16": resnet,
    "launch-bound loop of tiny operators": tiny,
}


@dataclass
class Bench:
    """Where, and for how long, each way is measured."""

    device: str
    seconds: float
    folder: Path
    pauses: list[float] = field(default_factory=list)
    """Seconds of the longest call of ``memprof.step`` in each measurement."""

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    def per_step(self, step: Step, count: int) -> float:
        """Seconds a step; ``memprof.step`` does nothing where nothing is recorded."""
        longest = 0.0
        self.wait()
        began = time.perf_counter()
        for _ in range(count):
            step()
            at = time.perf_counter()
            memprof.step()
            longest = max(longest, time.perf_counter() - at)
        self.wait()
        took = (time.perf_counter() - began) / count
        self.pauses.append(longest)
        return took


Way = Callable[[Bench, Step, int], float]
Taken = dict[str, list[float]]
"""Seconds a step of each measurement, by the name of the way."""


def plain(bench: Bench, step: Step, count: int) -> float:
    return bench.per_step(step, count)


def by_default(bench: Bench, step: Step, count: int) -> float:
    """As it is after the start: the budget of 1 %, without the allowance that short runs have."""
    with memprof.track(bench.folder / "run.json", allowance_s=0.0):
        bench.per_step(step, 3)
        return bench.per_step(step, 3 * count)  # long enough for a window to open


def one_window(bench: Bench, step: Step, count: int) -> float:
    """CUDA alone, in a window that is open throughout; what is read in it is in the time."""
    return _in_a_window(bench, step, count, (bench.device,))


def whole_window(bench: Bench, step: Step, count: int) -> float:
    """The same with every source, as it is by default: CPU tensors too."""
    return _in_a_window(bench, step, count, ("cuda", "cpu", "nvml", "host"))


def _in_a_window(bench: Bench, step: Step, count: int, sources: tuple[str, ...]) -> float:
    path = bench.folder / "run.json"
    with memprof.track(path, sources=sources, allowance_s=1e6, max_events=100_000_000):
        bench.per_step(step, 1)
        return bench.per_step(step, max(3, count // 3))  # where launching is all, it is far slower


def recorder(bench: Bench, step: Step, count: int) -> float:
    """torch's own, Python stacks; without the snapshot that one needs to see any of it."""
    memory = torch.cuda.memory
    memory._record_memory_history("all", stacks="python", max_entries=RING)
    try:
        bench.per_step(step, 1)
        return bench.per_step(step, count)
    finally:
        memory._record_memory_history(None)


def recorder_read(bench: Bench, step: Step, count: int) -> float:
    """The same with the snapshot, of as many steps as its ring holds: what a window does, once."""
    memory = torch.cuda.memory
    memory._record_memory_history("all", stacks="python", max_entries=RING)
    try:
        before = _entries()
        bench.per_step(step, 1)
        count = max(1, min(count, RING // max(1, _entries() - before) - 2))
        began = time.perf_counter()
        bench.per_step(step, count)
        memory._snapshot()
        return (time.perf_counter() - began) / count
    finally:
        memory._record_memory_history(None)


def _entries() -> int:
    """What the recorder has written, by torch's counters: one an allocation, two a free."""
    stats = torch.cuda.memory_stats()
    return stats["allocation.all.allocated"] + 2 * stats["allocation.all.freed"]


def profiler(bench: Bench, step: Step, count: int) -> float:
    """With the time that it takes to stop, in which it does most of its work."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    kinds += [torch.profiler.ProfilerActivity.CUDA] if bench.device == "cuda" else []
    count = min(count, PROFILED_STEPS)
    began = time.perf_counter()
    with torch.profiler.profile(activities=kinds, profile_memory=True):
        bench.per_step(step, count)
    return (time.perf_counter() - began) / count


def ways(device: str) -> dict[str, Way]:
    """Name and measurement of each; torch's recorder needs a CUDA device."""
    found: dict[str, Way] = {
        "plain": plain,
        "memprof, default budget": by_default,
        "memprof, one window": one_window,
        "one window, CPU too": whole_window,
        THEIRS: recorder,
        READ: recorder_read,
        LAST: profiler,
    }
    if device != "cuda":
        del found[THEIRS], found[READ]
    return found


def measured(
    bench: Bench, step: Step, rounds: int, deadline: float, keep: Callable[[Taken], None]
) -> None:
    """Seconds a step of each way, measured in turns, given to ``keep`` after each measurement.

    Ways that were not begun before the deadline have none, the last one, which is short, excepted;
    one that raises has no more turns.
    """
    bench.per_step(step, 5)  # caches, kernels and the clock of the card warm up
    count = max(3, round(bench.seconds / bench.per_step(step, 5)))
    todo = ways(bench.device)
    turns = list(product(range(rounds), (name for name in todo if name != LAST)))
    taken: Taken = {name: [] for name in todo}
    for _, name in [*turns, *product(range(rounds), [LAST])]:
        is_late = bool(taken["plain"]) and time.monotonic() > deadline
        if name not in todo or (is_late and (name != LAST or taken[LAST])):
            continue
        try:
            taken[name].append(todo[name](bench, step, count))
        except Exception as error:  # noqa: BLE001 - the others are worth having without it
            print(f"  {name} failed: {type(error).__name__}: {error}", flush=True)
            del todo[name]
        keep(taken)
        gc.collect()


def show(program: str, took: dict[str, float], pauses: list[float]) -> None:
    base = took["plain"]
    print(f"\n{program}")
    for name, seconds in took.items():
        print(f"  {name:32} {seconds * 1e3:10.3f} ms a step  {seconds / base:7.4f} x")
    print(f"  longest call of memprof.step: {max(pauses, default=0.0) * 1e3:.1f} ms", flush=True)
    default = took.get("memprof, default budget")
    if default is not None:
        print(f"  default budget: {_judged(default / base, DEFAULT_TARGET)}")
    ours = took.get("memprof, one window")
    for theirs in (THEIRS, READ):
        if ours is not None and theirs in took:
            print(f"  a window over {theirs}: {_judged(ours / took[theirs], WINDOW_TARGET)}")
            if took[theirs] > base:
                extra = (ours - base) / (took[theirs] - base)
                print(f"  what a window adds over what it adds: {extra:.2f} x")


def _judged(ratio: float, target: float) -> str:
    return f"{ratio:.4f} x, wanted at most {target} x: {'met' if ratio <= target else 'MISSED'}"


def table(found: dict[str, dict[str, float]]) -> str:
    """For docs/gpu-results.md: milliseconds a step, and times the plain program."""
    names = list(dict.fromkeys(name for took in found.values() for name in took))
    rows = [f"| program | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for program, took in found.items():
        cells = [_cell(took.get(name), took["plain"]) for name in names]
        rows.append(f"| {program} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _cell(seconds: float | None, plain: float) -> str:
    if seconds is None:
        return "no time left"
    return f"{seconds * 1e3:.2f} ms ({seconds / plain:.3f} x)"


def where(device: str) -> str:
    """The machine and the versions, in one line."""
    name = torch.cuda.get_device_name() if device == "cuda" else f"a CPU ({platform.machine()})"
    cuda = torch.version.cuda or "none"
    python = platform.python_version()
    return (
        f"{name}, torch {torch.__version__}, CUDA {cuda}, Python {python}, "
        f"memprof {memprof.__version__}, {datetime.now(timezone.utc):%Y-%m-%d}"
    )


def run_one(program: str, options: argparse.Namespace, result: Path) -> None:
    """Measure a program here; all that is known so far is in the file ``result`` at any time."""
    sizes = DRY if options.dry_run else WANTED
    seconds, rounds = (0.05, 1) if options.dry_run else (options.seconds, options.rounds)
    until = time.monotonic() + options.share_s
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(sizes.device, seconds, Path(folder))

        def keep(taken: Taken) -> None:
            result.write_text(json.dumps({"taken": taken, "pauses": bench.pauses}))

        measured(bench, PROGRAMS[program](sizes), rounds, until, keep)


def run_apart(program: str, share_s: float, folder: Path) -> tuple[dict[str, float], list[float]]:
    """The medians of a program that a process of its own measures, and `Bench.pauses`."""
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    command = [sys.executable, __file__, *sys.argv[1:], "--share-s", str(share_s)]
    command += ["--program", program, "--result", str(result)]
    try:
        code = subprocess.run(command, check=False, timeout=share_s + GRACE_S).returncode
    except subprocess.TimeoutExpired:
        code = -1
    if code:
        print(f"{program}: its process ended with {code}; what it had measured is kept")
    found = json.loads(result.read_text()) if result.exists() else {"taken": {}, "pauses": []}
    return {name: median(times) for name, times in found["taken"].items() if times}, found["pauses"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="tiny programs on the CPU")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--program", choices=PROGRAMS, help=argparse.SUPPRESS)
    parser.add_argument("--share-s", type=float, default=DEADLINE_S, help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.dry_run and not torch.cuda.is_available():
        print("no CUDA device: nothing was measured (--dry-run tries the code on a CPU)")
        return
    if options.program:
        run_one(options.program, options, options.result)
        return
    deadline = time.monotonic() + DEADLINE_S
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, program in enumerate(PROGRAMS):
            left_s = max(0.0, deadline - time.monotonic())
            took, pauses = run_apart(program, left_s / (len(PROGRAMS) - number), Path(folder))
            if "plain" in took:
                found[program] = took
                show(program, took, pauses)
    dry = " (DRY RUN)" if options.dry_run else ""
    print(f"\n{where('cpu' if options.dry_run else 'cuda')}{dry}\n\n{table(found)}")


if __name__ == "__main__":
    main()
