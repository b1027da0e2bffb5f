"""What memprof costs on a GPU, beside torch's own recorder and its profiler, in turns in one run.

Without a CUDA device it says so; ``--dry-run`` runs the same code on a CPU, with programs so small
that their figures say nothing. The last lines are a table for docs/gpu-results.md.
"""

from __future__ import annotations

import argparse
import gc
import platform
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
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
        return bench.per_step(step, count)


def recorder(bench: Bench, step: Step, count: int) -> float:
    """torch's own, Python stacks; without the snapshot that one needs to see any of it."""
    memory = torch.cuda.memory
    memory._record_memory_history("all", stacks="python", max_entries=100_000)
    try:
        bench.per_step(step, 1)
        return bench.per_step(step, count)
    finally:
        memory._record_memory_history(None)


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
        "torch's recorder, Python stacks": recorder,
        "torch.profiler with memory": profiler,
    }
    if device != "cuda":
        del found["torch's recorder, Python stacks"]
    return found


def measured(bench: Bench, step: Step, rounds: int, deadline: float) -> dict[str, float]:
    """Median seconds a step of each way, measured in turns; of ways that were not begun, none."""
    bench.per_step(step, 5)  # caches, kernels and the clock of the card warm up
    count = max(3, round(bench.seconds / bench.per_step(step, 5)))
    taken: dict[str, list[float]] = {name: [] for name in ways(bench.device)}
    for _, (name, way) in product(range(rounds), ways(bench.device).items()):
        if taken["plain"] and time.monotonic() > deadline:
            break
        taken[name].append(way(bench, step, count))
        gc.collect()
    return {name: median(times) for name, times in taken.items() if times}


def show(program: str, took: dict[str, float], pauses: list[float]) -> None:
    base = took["plain"]
    print(f"\n{program}")
    for name, seconds in took.items():
        print(f"  {name:32} {seconds * 1e3:10.3f} ms a step  {seconds / base:7.4f} x")
    print(f"  longest call of memprof.step: {max(pauses, default=0.0) * 1e3:.1f} ms")
    default = took.get("memprof, default budget")
    if default is not None:
        print(f"  default budget: {_judged(default / base, DEFAULT_TARGET)}")
    ours, theirs = took.get("memprof, one window"), took.get("torch's recorder, Python stacks")
    if ours is not None and theirs is not None:
        print(f"  a window over torch's recorder: {_judged(ours / theirs, WINDOW_TARGET)}")
        if theirs > base:
            extra = (ours - base) / (theirs - base)
            print(f"  what a window adds over what torch's recorder adds: {extra:.2f} x")


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="tiny programs on the CPU")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if not options.dry_run and not torch.cuda.is_available():
        print("no CUDA device: nothing was measured (--dry-run tries the code on a CPU)")
        return
    sizes = DRY if options.dry_run else WANTED
    seconds, rounds = (0.05, 1) if options.dry_run else (options.seconds, options.rounds)
    deadline = time.monotonic() + DEADLINE_S
    found = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for number, (program, make) in enumerate(PROGRAMS.items()):
            now = time.monotonic()
            until = now + max(0.0, deadline - now) / (len(PROGRAMS) - number)
            torch.manual_seed(0)
            bench = Bench(sizes.device, seconds, folder)
            found[program] = measured(bench, make(sizes), rounds, until)
            show(program, found[program], bench.pauses)
            gc.collect()
            if sizes.device == "cuda":
                torch.cuda.empty_cache()
    print(f"\n{where(sizes.device)}{' (DRY RUN)' if options.dry_run else ''}\n\n{table(found)}")


if __name__ == "__main__":
    main()
