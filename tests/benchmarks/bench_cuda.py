"""What memprof costs on a GPU, beside torch's own recorder and its profiler, in turns in one run.

    python tests/benchmarks/bench_cuda.py                          half an hour's worth, in ten minutes
    python tests/benchmarks/bench_cuda.py --only tiny --seconds 1
    python tests/benchmarks/bench_cuda.py --only gpt --long-s 30   the claim of 1 %, and nothing else
    memprof dry-run --gpu 8GiB --no-record python tests/benchmarks/bench_cuda.py --seconds 0.5

Without a CUDA device it says so; ``--dry-run`` runs the same code on a CPU, with programs so small
that their figures say nothing. Each program has a process of its own, and what was measured stays
when it dies; the profiler comes last there, as what it starts in the driver stays on.

The leak search is taken out of what a window costs and told apart: it comes at steps 8, 12, 16, 24,
32 ... whatever a window costs. Ratios are those of the clock on a GPU. Above the stub, where no
kernel runs, they are those of the processor's time, which other programs disturb less.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from cuda_programs import DRY, WANTED, Step, crowded, decoding, gpt, resnet, tiny
from native_part import has_native_part, native_part
from recordings import check
from stalls import LEAK_SEARCH, Held, Stalls

import memprof
from memprof.record.process import is_dry_run
from memprof.sources.loop.module_hooks import ModuleHooks

if str(Path(__file__).resolve().parents[2]) not in sys.path:
    sys.path.append(str(Path(__file__).resolve().parents[2]))

from tests.results import write

BETWEEN_AIM, WINDOW_AIM, STALL_AIM_S = 1.01, 1.2, 0.5
BUDGET, ALLOWANCE_S = 0.01, 5.0
"""memprof's own defaults."""
LIMIT_S = 7 * 60.0
"""No further measurement begins after this; each program has its share of what is left."""
GRACE_S = 60
"""Beyond its share, for what it began; then a program is ended."""
RING = 100_000
"""Entries that torch's recorder keeps."""
ENDLESS_S = 1e6
"""An allowance that keeps the first window open."""
PROFILED_STEPS = 10
"""The profiler keeps everything until it stops, so it gets few steps."""
WARMING_STEPS = 3
"""Steps of a recording before its time is taken: the first ones make the optimizer's state."""

PLAIN, BETWEEN = "plain", "between windows"
ALONE, DEFAULT, NATIVE = "window, CUDA alone", "window, default sources", "window, native part"
RECORDER, READ = "torch's recorder", "torch's recorder, read once"
FLOOR = "torch's recorder, empty hooks on modules"
PROFILER = "torch.profiler with memory"
WHOLE, TIGHT = "default budget and allowance", "default budget, no allowance"
PROGRAMS = {
    "tiny": ("launch-bound loop of tiny operators", tiny),
    "gpt": ("GPT-2 small, bf16, a third of the card", gpt),
    "resnet": ("ResNet-50, bf16", resnet),
    "crowded": ("three operators beside 200,000 live blocks", crowded),
    "inference": ("a token of GPT-2 small, no gradients", decoding),
}


class Taken(NamedTuple):
    """Seconds a step: by the clock, and of the processor."""

    clock: float
    processor: float


@dataclass
class Bench:
    """Where, and for how long, each way is measured."""

    device: str
    seconds: float
    folder: Path
    held: dict[str, Held] = field(default_factory=dict)
    """Of all windows together, by kind."""

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()

    @property
    def run_path(self) -> Path:
        return self.folder / "run.json"

    @contextmanager
    def taking(self, count: int, taken: list[Taken]) -> Iterator[None]:
        """Time a block of so many steps."""
        self.wait()
        began_s, processor_s = time.perf_counter(), time.process_time()
        yield
        self.wait()
        clock_s, used_s = time.perf_counter() - began_s, time.process_time() - processor_s
        taken.append(Taken(clock_s / count, used_s / count))

    def per_step(self, step: Step, count: int) -> Taken:
        """``memprof.step`` does nothing where nothing is recorded."""
        taken: list[Taken] = []
        with self.taking(count, taken):
            for _ in range(count):
                step()
                memprof.step()
        return taken[0]


Way = Callable[[Bench, Step, int], Taken]
Times = dict[str, list[Taken]]
"""Of each measurement, by the name of the way."""


def plain(bench: Bench, step: Step, count: int) -> Taken:
    return bench.per_step(step, count)


def between(bench: Bench, step: Step, count: int) -> Taken:
    """With the counters alone, as a job is most of the time."""
    with memprof.track(bench.run_path, max_events=0):
        bench.per_step(step, WARMING_STEPS)
        return bench.per_step(step, count)


def window(
    bench: Bench, step: Step, count: int, *, sources: tuple[str, ...] | None, native: bool = False
) -> Taken:
    """In a window that is open throughout; what is read in it is in the time."""
    count = max(3, count // 3)  # where launching is all, it is far slower
    stalls = Stalls()
    with native_part(used=native), stalls:
        tracker = memprof.track(
            bench.run_path, sources=sources, allowance_s=ENDLESS_S, max_events=100_000_000
        )
        with tracker:
            bench.per_step(step, WARMING_STEPS)
            search = stalls.held[LEAK_SEARCH]
            before_s, before_processor_s = search.seconds, search.processor_s
            taken = bench.per_step(step, count)
            searched_s = search.seconds - before_s
            searched_processor_s = search.processor_s - before_processor_s
    check(bench.run_path, "cuda:0" if bench.device == "cuda" else "cpu", count)
    for kind, held in stalls.held.items():
        bench.held.setdefault(kind, Held()).add(held)
    return Taken(taken.clock - searched_s / count, taken.processor - searched_processor_s / count)


def recorder(bench: Bench, step: Step, count: int) -> Taken:
    """torch's own, as memprof asks for it; without the snapshot that one needs to see any of it."""
    with _recording():
        bench.per_step(step, 1)
        return bench.per_step(step, count)


def recorder_with_hooks(bench: Bench, step: Step, count: int) -> Taken:
    """The same with hooks on modules that do nothing: the floor of whatever tells modules."""
    hooks = ModuleHooks(lambda _module, _args: None, lambda _module, _args, _output: None)
    hooks.add()
    try:
        return recorder(bench, step, count)
    finally:
        hooks.remove()


def recorder_read(bench: Bench, step: Step, count: int) -> Taken:
    """The same with the snapshot, of as many steps as its ring holds: what a window does, once."""
    taken: list[Taken] = []
    with _recording():
        before = _entries()
        bench.per_step(step, 1)
        count = max(1, min(count, RING // max(1, _entries() - before) - 2))
        with bench.taking(count, taken):
            bench.per_step(step, count)
            torch.cuda.memory._snapshot()
    return taken[0]


@contextmanager
def _recording() -> Iterator[None]:
    memory = torch.cuda.memory
    memory._record_memory_history("all", context="alloc", stacks="python", max_entries=RING)
    try:
        yield
    finally:
        memory._record_memory_history(None)


def _entries() -> int:
    """What the recorder has written, by torch's counters: one an allocation, two a free."""
    stats = torch.cuda.memory_stats()
    return stats["allocation.all.allocated"] + 2 * stats["allocation.all.freed"]


def profiler(bench: Bench, step: Step, count: int) -> Taken:
    """With the time that it takes to stop, in which it does most of its work."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    kinds += [torch.profiler.ProfilerActivity.CUDA] if bench.device == "cuda" else []
    count = min(count, PROFILED_STEPS)
    taken: list[Taken] = []
    with bench.taking(count, taken), torch.profiler.profile(activities=kinds, profile_memory=True):
        bench.per_step(step, count)
    return taken[0]


def budgeted(bench: Bench, step: Step, count: int, *, allowance_s: float) -> Taken:
    """As anybody records: windows open as the budget has room; opening and closing are in it."""
    taken: list[Taken] = []
    with (
        bench.taking(count, taken),
        memprof.track(bench.run_path, budget=BUDGET, allowance_s=allowance_s),
    ):
        bench.per_step(step, count)
    return taken[0]


def ways(program: str, bench: Bench, *, is_long: bool) -> dict[str, Way]:
    """Name and measurement of each; torch's recorder needs a CUDA device."""
    if is_long:
        return {
            PLAIN: plain,
            WHOLE: partial(budgeted, allowance_s=ALLOWANCE_S),
            TIGHT: partial(budgeted, allowance_s=0.0),
        }
    found: dict[str, Way] = {PLAIN: plain, BETWEEN: between}
    if program != "inference":
        found[ALONE] = partial(window, sources=(bench.device,))
    found[DEFAULT] = partial(window, sources=None)
    if has_native_part():
        found[NATIVE] = partial(window, sources=None, native=True)
    if bench.device == "cuda":
        found |= {RECORDER: recorder, FLOOR: recorder_with_hooks, READ: recorder_read}
    if bench.device != "cuda" or not is_dry_run():  # which is no CUPTI, and the profiler calls it
        found[PROFILER] = profiler
    return found


def measured(
    bench: Bench,
    step: Step,
    todo: dict[str, Way],
    rounds: int,
    deadline_s: float,
    keep: Callable[[Times], None],
) -> None:
    """Measure each way in turns; ``keep`` is given all times after each measurement.

    Ways that were not begun before the deadline have none, the profiler, which is short, excepted;
    one that raises has no more turns.
    """
    importlib.import_module("torch._inductor.codecache")  # else the first snapshot imports it
    bench.per_step(step, 5)  # caches, kernels and the clock of the card warm up
    count = max(3, round(bench.seconds / bench.per_step(step, 5).clock))
    turns = list(product(range(rounds), (name for name in todo if name != PROFILER)))
    times: Times = {name: [] for name in todo}
    for _, name in [*turns, *product(range(rounds), [PROFILER])]:
        is_late = bool(times[PLAIN]) and time.monotonic() > deadline_s
        if name not in todo or (is_late and (name != PROFILER or times[PROFILER])):
            continue
        try:
            times[name].append(todo[name](bench, step, count))
        except Exception as error:  # noqa: BLE001 - the others are worth having without it
            print(f"  {name} failed: {type(error).__name__}: {error}", flush=True)
            del todo[name]
        keep(times)
        gc.collect()


# -- telling ---------------------------------------------------------------------------------------


@dataclass
class RuleFinding:
    """What the process of one program measured."""

    title: str
    is_long: bool
    by_clock: bool
    """Whether ratios are those of the clock."""
    took: dict[str, Taken]
    """Medians."""
    held: dict[str, Held]
    steps: int = 0

    def seconds(self, name: str) -> float | None:
        """A step of one way, by the clock that is judged by; None where it was not measured."""
        taken = self.took.get(name)
        return None if taken is None else taken.clock if self.by_clock else taken.processor

    def ratio(self, name: str, to: str) -> float | None:
        """One way over another."""
        above, below = self.seconds(name), self.seconds(to)
        return above / below if above is not None and below else None


def show(program: str, found: RuleFinding) -> None:
    """Print what a program took, and judge it."""
    print(f"\n{found.title}")
    for name, taken in found.took.items():
        told = (
            f"{taken.clock * 1e3:10.3f} ms a step, {taken.processor * 1e3:10.3f} of the processor"
        )
        print(f"  {name:30} {told}  {found.ratio(name, PLAIN) or 0.0:7.3f} x")
    for kind, held in found.held.items():
        if held.calls:
            longest_s = held.longest_s if found.by_clock else held.longest_processor_s
            whole_s = held.seconds if found.by_clock else held.processor_s
            told = f"longest {longest_s * 1e3:.0f} ms, {held.calls} take {whole_s:.2f} s"
            _judge(f"{program}: {kind}", told, longest_s <= STALL_AIM_S, f"{STALL_AIM_S} s")
    if found.is_long:
        for name, allowance_s in ((WHOLE, ALLOWANCE_S), (TIGHT, 0.0)):
            _judge_budget(program, name, found, allowance_s)
        return
    aims = [(BETWEEN, PLAIN, BETWEEN_AIM), (ALONE, READ, WINDOW_AIM), (DEFAULT, READ, WINDOW_AIM)]
    aims += [(NATIVE, RECORDER, WINDOW_AIM), (FLOOR, RECORDER, WINDOW_AIM)]
    for name, reference, aim in aims:
        ratio = found.ratio(name, reference)
        if ratio is not None:
            _judge(
                f"{program}: {name} over {reference}", f"{ratio:.3f} x", ratio <= aim, f"{aim} x"
            )


def _judge_budget(program: str, name: str, found: RuleFinding, allowance_s: float) -> None:
    """Whether a whole recording took no more than its allowance, or its share of the time."""
    plain_s, taken_s = found.seconds(PLAIN), found.seconds(name)
    if plain_s is None or taken_s is None:
        return
    more_s, whole_s = (taken_s - plain_s) * found.steps, plain_s * found.steps
    aim_s = max(allowance_s, BUDGET * whole_s)
    told = f"{more_s:.2f} s more than {whole_s:.1f} s ({100 * more_s / whole_s:.2f} %)"
    _judge(f"{program}: {name}", told, more_s <= aim_s, f"{aim_s:.2f} s")


def _judge(name: str, told: str, is_met: bool, aim: str) -> None:
    outcome = "met" if is_met else "missed"
    print(f"  {name}: {told}; the aim is at most {aim}: {outcome}", flush=True)
    write(name, outcome, f"{told}; the aim is at most {aim}")


def table(found: dict[str, RuleFinding]) -> str:
    """For docs/gpu-results.md: milliseconds a step, and times the plain program."""
    names = list(dict.fromkeys(name for one in found.values() for name in one.took))
    rows = [f"| program | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for one in found.values():
        cells = [_cell(one, name) for name in names]
        rows.append(f"| {one.title} | {' | '.join(cells)} |")
    return "\n".join(rows)


def _cell(found: RuleFinding, name: str) -> str:
    seconds = found.seconds(name)
    if seconds is None:
        return "not measured"
    return f"{seconds * 1e3:.2f} ms ({found.ratio(name, PLAIN):.3f} x)"


def where(device: str) -> str:
    """The machine and the versions, in one line."""
    name = torch.cuda.get_device_name() if device == "cuda" else f"a CPU ({platform.machine()})"
    return (
        f"{name}, torch {torch.__version__}, CUDA {torch.version.cuda or 'none'}, "
        f"Python {platform.python_version()}, memprof {memprof.__version__}, "
        f"{'with' if has_native_part() else 'without'} its native part, {os.cpu_count()} cores, "
        f"load {os.getloadavg()[0]:.1f}, {datetime.now(timezone.utc):%Y-%m-%d}"
    )


# -- running ---------------------------------------------------------------------------------------


def run_one(program: str, options: argparse.Namespace, result: Path) -> None:
    """Measure a program here; all that is known so far is in the file ``result`` at any time."""
    sizes = DRY if options.dry_run else WANTED
    seconds = 0.05 if options.dry_run else options.long_s or options.seconds
    rounds = 1 if options.dry_run else 2 if options.long_s else options.rounds
    until_s = time.monotonic() + options.share_s
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(sizes.device, seconds, Path(folder))

        def keep(times: Times) -> None:
            held = {kind: asdict(one) for kind, one in bench.held.items()}
            result.write_text(json.dumps({"times": times, "held": held}))

        todo = ways(program, bench, is_long=bool(options.long_s))
        measured(bench, PROGRAMS[program][1](sizes), todo, rounds, until_s, keep)


def run_apart(
    program: str, share_s: float, options: argparse.Namespace, folder: Path
) -> RuleFinding:
    """What a process of its own measures of a program."""
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
    kept = json.loads(result.read_text()) if result.exists() else {"times": {}, "held": {}}
    took = {
        name: Taken(*(median(column) for column in zip(*times, strict=True)))
        for name, times in kept["times"].items()
        if times
    }
    held = {kind: Held(**one) for kind, one in kept["held"].items()}
    on_a_card = not options.dry_run and not is_dry_run()
    steps = round(options.long_s / took[PLAIN].clock) if options.long_s and PLAIN in took else 0
    return RuleFinding(PROGRAMS[program][0], bool(options.long_s), on_a_card, took, held, steps)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry-run", action="store_true", help="tiny programs on the CPU")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="no measurement after that")
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument(
        "--long-s",
        type=float,
        default=0.0,
        help="whole recordings of so long, for the claim of 1 %%",
    )
    parser.add_argument("--program", choices=PROGRAMS, help=argparse.SUPPRESS)
    parser.add_argument("--share-s", type=float, default=LIMIT_S, help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.dry_run and not torch.cuda.is_available():
        print("no CUDA device: nothing was measured (--dry-run tries the code on a CPU)")
        return
    if options.program:
        run_one(options.program, options, options.result)
        return
    deadline_s = time.monotonic() + options.limit_s
    found: dict[str, RuleFinding] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, program in enumerate(options.only):
            left_s = max(0.0, deadline_s - time.monotonic())
            share_s = left_s / (len(options.only) - number)
            one = run_apart(program, share_s, options, Path(folder))
            if PLAIN in one.took:
                found[program] = one
                show(program, one)
    dry = " (DRY RUN)" if options.dry_run else ""
    print(f"\n{where('cpu' if options.dry_run else 'cuda')}{dry}\n\n{table(found)}")


if __name__ == "__main__":
    main()
