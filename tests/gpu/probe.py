"""What memprof claims of a job on CUDA, tried on the device that is here, in about a minute.

    python tests/gpu/probe.py [CLAIM ...]
    memprof dry-run --gpu 8GiB --no-record python tests/gpu/probe.py labels peak

A line is a claim, what is expected, what was seen, and whether it holds; the last ones are costs
that nothing is claimed of. One that fails keeps no other from being tried.
"""

from __future__ import annotations

import gc
import importlib
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

import memprof
from memprof.loading import load
from memprof.record.process import is_dry_run
from memprof.run import Run
from memprof.trace import Action, Category, Trace
from tests.gpu.devices import recorded
from tests.gpu.modulehooks import global_module_hooks
from tests.results import HOLDS, MEASURED, VIOLATED, write

CUDA = ("cuda",)
DEFAULT = None
"""Stands for the sources of everybody who asks for none."""
ENDLESS_S = 1000.0
"""An allowance that keeps a window open."""
MIB = 1 << 20
LONGEST_STALL_S = 0.5
OPERATORS = 20_000
"""Of a step without any module: 60,000 entries of torch's recorder, more than its ring holds."""
BLOCKS = (30_000, 200_000)


class Seen(NamedTuple):
    """The outcome of one claim."""

    expected: str
    was: str
    holds: bool | None
    """None where this machine cannot tell."""


def run_path(folder: Path) -> Path:
    return folder / "run.json"


def allocations(window: Trace, steps: range) -> Counter[tuple[str, str]]:
    """MiB that were allocated in some steps, by phase and category."""
    found: Counter[tuple[str, str]] = Counter()
    events = window.events
    columns = (events.action, events.size, events.label, events.category)
    for action, size, row, category in zip(*(c.tolist() for c in columns), strict=True):
        label = window.label(row)
        if action == Action.ALLOC and label.step in steps:
            found[label.phase.name, Category(category).name] += size
    return Counter({key: round(size / MIB) for key, size in found.items() if size >= MIB})


def record(folder: Path, job: Callable[[], None], sources: tuple[str, ...] | None, **more) -> Run:
    with memprof.track(run_path(folder), sources=sources, **more):
        job()
    return load(run_path(folder))


# -- claims ----------------------------------------------------------------------------------------


def labels(folder: Path) -> Seen:
    """Phases and categories are the same whatever is recorded beside CUDA."""
    layers = [torch.nn.Linear(512, 512) for _ in range(4)]
    head = torch.nn.Linear(512, 32000)
    model = torch.nn.Sequential(*layers, torch.nn.LayerNorm(512), head).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.ones(512, 512, device="cuda")
    y = torch.zeros(512, dtype=torch.long, device="cuda")

    def train() -> None:
        for _ in range(6):
            torch.nn.functional.cross_entropy(model(x).float(), y).backward()
            optimizer.step()
            optimizer.zero_grad()

    train()
    found, notes = [], []
    for sources in (CUDA, DEFAULT):
        run = record(folder, train, sources, allowance_s=ENDLESS_S)
        found.append(allocations(recorded(run).windows[0], range(2, 5)))
        notes += [n.message for n in run.notes if "not seen" in n.message]
    differing = {key: (found[0][key], found[1][key]) for key in found[0] | found[1]}
    differing = {" ".join(key): mib for key, mib in differing.items() if mib[0] != mib[1]}
    return Seen(
        "MiB by phase and category of CUDA alone equal those of the default; no note of the unseen",
        f"{differing or 'equal'}; notes: {notes[:1] or 'none'}",
        not differing and not notes,
    )


def peak(folder: Path) -> Seen:
    """The job's own peak and its number of allocations are those without memprof."""
    weight = torch.nn.Parameter(torch.ones(16 * MIB, device="cuda"))

    def step() -> None:
        x = weight * 1.0
        sum((x * float(n)).sum() for n in range(1, 5)).backward()  # four gradients meet in one
        weight.grad = None

    def one() -> tuple[int, int]:
        for _ in range(3):
            step()
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        step()
        after = torch.cuda.memory_stats()["allocation.all.allocated"]
        return torch.cuda.max_memory_allocated() // MIB, after - before

    seen = [one()]
    for sources in (CUDA, DEFAULT):
        with memprof.track(run_path(folder), sources=sources, allowance_s=ENDLESS_S):
            seen.append(one())
    return Seen(
        f"peak MiB and allocations of a step as without memprof: {seen[0]}",
        f"CUDA alone {seen[1]}, default {seen[2]}",
        len(set(seen)) == 1,
    )


def bits(folder: Path) -> Seen:
    """Gradients are equal to the last bit."""
    expected = "gradients of prod and cumprod equal to the last bit"
    if is_dry_run():
        return Seen(expected, "kernels do not run here", None)

    def gradients() -> list[torch.Tensor]:
        found = []
        for function in (lambda x: x.prod(1), lambda x: x.cumprod(1)):
            torch.manual_seed(1)
            x = (torch.rand(64, 64, device="cuda") + 0.5).requires_grad_()
            function(x).sum().backward()
            found.append(x.grad)
        return found

    plain, again = gradients(), gradients()
    with memprof.track(run_path(folder)):
        ours = gradients()
    off = [(a - b).abs().max().item() for a, b in zip(plain, ours, strict=True)]
    by_itself = [(a - b).abs().max().item() for a, b in zip(plain, again, strict=True)]
    was = f"off by {off}; two runs without memprof by {by_itself}"
    return Seen(expected, was, max(off) <= max(by_itself))


def compiled(folder: Path) -> Seen:
    """torch.compile compiles nothing again when a window closes, nor when the next one opens."""
    from torch._dynamo.utils import counters

    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(3)]).cuda()
    function = torch.compile(model, backend="aot_eager")

    def graphs() -> int:
        for _ in range(3):
            function(torch.ones(8, 64, device="cuda")).sum().backward()
            model.zero_grad()
        return counters["stats"]["unique_graphs"]

    counters.clear()
    torch._dynamo.reset()
    seen = []
    for _ in range(2):
        with memprof.track(run_path(folder), allowance_s=ENDLESS_S):
            seen.append(graphs())
        seen.append(graphs())
    was = "in a window, after it, in the next, after it: " + ", ".join(map(str, seen))
    return Seen("1 graph throughout", was, set(seen) == {1})


_NEAR_THE_LIMIT = """
import contextlib, torch, memprof
layer = torch.nn.Linear(16, 16).cuda()
@torch.compile(backend="aot_eager", dynamic=False, fullgraph=True)
def f(x):
    return layer(x)
def work():
    for rows in (8, 16, 24, 32, 40):
        f(torch.ones(rows, 16, device="cuda"))
with {recording}:
    work()
work()
"""


def recompilations(folder: Path) -> Seen:
    """A program that needs 5 of the 8 compilations that torch allows goes on."""
    return _ends_as_without(_NEAR_THE_LIMIT, f"memprof.track({str(run_path(folder))!r})")


_IN_A_THREAD = """
import contextlib, threading, torch, memprof
layer = torch.nn.Linear(64, 64).cuda()
def loop():
    for _ in range(20):
        layer(torch.ones(8, 64, device="cuda")).sum().backward()
        layer.zero_grad()
        memprof.step()
with {recording}:
    thread = threading.Thread(target=loop)
    thread.start()
    thread.join()
"""


def thread(folder: Path) -> Seen:
    """A window that begins in one thread and ends in another leaves torch nothing to say."""
    recording = f"memprof.track({str(run_path(folder))!r}, allowance_s=0.0)"
    return _ends_as_without(_IN_A_THREAD, recording)


def _ends_as_without(program: str, recording: str) -> Seen:
    """Whether a program ends, and says on stderr, what it does where nothing is recorded."""
    ends = []
    for context in ("contextlib.nullcontext()", recording):
        code = program.format(recording=context)
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        ends.append((done.returncode, done.stderr.strip().splitlines()))
    (plain_code, plain_lines), (code, lines) = ends
    own = [line for line in lines if line not in plain_lines]
    return Seen(
        f"exit code {plain_code} and no line on stderr but torch's own, as without memprof",
        f"exit code {code}, {own[-1][:100] if own else 'no other line'}",
        code == plain_code == 0 and not own,
    )


class _Leaf(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class _Leaves(torch.nn.Module):
    """400 modules that do nothing, so a call of one costs what torch takes for calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.leaves = torch.nn.ModuleList(_Leaf() for _ in range(400))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for leaf in self.leaves:
            x = leaf(x)
        return x


def inference(folder: Path) -> Seen:
    """Between windows no hook is on every module, and what there is stays below 1 µs a call."""
    net, x = _Leaves().cuda(), torch.ones(4, device="cuda")

    def call_us(times: int = 100) -> float:
        net(x)
        began_s = time.perf_counter()
        for _ in range(times):
            net(x)
        return (time.perf_counter() - began_s) / times / 401 * 1e6

    hooks = global_module_hooks()
    with torch.no_grad():
        plain_us = min(call_us() for _ in range(3))
        with memprof.track(run_path(folder), max_events=0) as tracker:
            for _ in range(20):
                net(x)
            between_us = min(call_us() for _ in range(3))
            added = global_module_hooks() - hooks
            own_ms = tracker.overhead_us / 1e3
    return Seen(
        "0 hooks on all modules, less than 1 µs more for each call",
        f"{added} hooks, {plain_us:.2f} -> {between_us:.2f} µs; its own estimate {own_ms:.1f} ms",
        added == 0 and between_us - plain_us < 1,
    )


def blocks(folder: Path) -> Seen:
    """A job with many live blocks is recorded, too."""
    seen = []
    for count in BLOCKS:
        kept = [torch.empty(1, device="cuda") for _ in range(count)]

        def job() -> None:
            for _ in range(3):
                torch.empty(9, device="cuda")
                memprof.step()

        seen.append(len(recorded(record(folder, job, DEFAULT)).windows))
        del kept
    names = " and ".join(f"{count:,}" for count in BLOCKS)
    return Seen(f"windows beside {names} live blocks", f"{seen}", all(seen))


def operators(folder: Path) -> Seen:
    """The ring is read in time where no module and no optimizer is crossed."""
    x = torch.ones(32, device="cuda")

    def job() -> None:
        for _ in range(8):
            y = x
            for _ in range(OPERATORS):
                y = y * 1.0001
            memprof.step()

    made, said = [], []
    for sources in (CUDA, DEFAULT):
        run = record(folder, job, sources, allowance_s=ENDLESS_S)
        windows = recorded(run).windows
        made.append(sum(int((one.events.action == Action.ALLOC).sum()) for one in windows))
        said += [note.message for note in run.notes if "overflow" in note.message]
    return Seen(
        f"{8 * OPERATORS} allocations recorded, by CUDA alone and by default, no overflow",
        f"{made[0]} and {made[1]}; notes: {said[:1] or 'none'}",
        set(made) == {8 * OPERATORS} and not said,
    )


def stall(folder: Path) -> Seen:
    """No step's end takes longer than half a second, leak looks included."""
    longest_s = 0.0
    x = torch.ones(32, device="cuda")
    with memprof.track(run_path(folder), allowance_s=ENDLESS_S):
        for _ in range(40):
            y = x
            for _ in range(500):
                y = y * 1.0001
            began_s = time.perf_counter()
            memprof.step()
            longest_s = max(longest_s, time.perf_counter() - began_s)
    return Seen(
        f"at most {LONGEST_STALL_S} s", f"{longest_s * 1e3:.0f} ms", longest_s <= LONGEST_STALL_S
    )


CLAIMS: tuple[Callable[[Path], Seen], ...] = (
    labels,
    peak,
    bits,
    compiled,
    recompilations,
    thread,
    inference,
    blocks,
    operators,
    stall,
)


# -- costs -----------------------------------------------------------------------------------------


def operator_costs(_folder: Path) -> str:
    """µs that torch's recorder adds to an operator, and its snapshot to an entry, by depth."""
    memory, count, ring = torch.cuda.memory, 8000, 30_000
    x = torch.ones(32, device="cuda")

    def at_depth(depth: int) -> None:
        if depth:
            at_depth(depth - 1)
            return
        y = x
        for _ in range(count):
            y = y * 1.0001

    def operator_us(depth: int) -> float:
        torch.cuda.synchronize()
        began_s = time.perf_counter()
        at_depth(depth)
        torch.cuda.synchronize()
        return (time.perf_counter() - began_s) / count * 1e6

    def recording(context: str | None) -> None:
        memory._record_memory_history("all", context=context, stacks="python", max_entries=ring)

    parts = []
    for depth in (5, 40):
        operator_us(depth)
        plain_us = min(operator_us(depth) for _ in range(3))
        added = {}
        for context in (None, "alloc", "all"):
            recording(context)
            operator_us(depth)
            added[str(context)] = min(operator_us(depth) for _ in range(3)) - plain_us
            memory._record_memory_history(None)
        recording("alloc")
        at_depth(depth)
        memory._snapshot()
        began_s = time.perf_counter()
        snapshot = memory._snapshot()
        took_s = time.perf_counter() - began_s
        entries = len(snapshot["device_traces"][torch.cuda.current_device()])
        memory._record_memory_history(None)
        more = ", ".join(f"{context} +{us:.2f}" for context, us in added.items())
        entry_us = took_s / max(1, entries) * 1e6
        parts.append(f"depth {depth}: {plain_us:.2f}, {more}, snapshot {entry_us:.2f} an entry")
    return "; ".join(parts)


def block_costs(_folder: Path) -> str:
    """µs of a look for each live block, without and with stacks."""
    parts = []
    for name, context in (("without stacks", None), ("with stacks", "alloc")):
        torch.cuda.memory._record_memory_history(
            "all", context=context, stacks="python", max_entries=1
        )
        before = sum(len(s["blocks"]) for s in torch.cuda.memory._snapshot()["segments"])
        kept = [torch.empty(1, device="cuda") for _ in range(BLOCKS[0])]
        torch.cuda.memory._snapshot()
        began_s = time.perf_counter()
        segments = torch.cuda.memory._snapshot()["segments"]
        took_s = time.perf_counter() - began_s
        torch.cuda.memory._record_memory_history(None)
        there = sum(len(segment["blocks"]) for segment in segments) - before
        parts.append(f"{name} {took_s / max(1, there) * 1e6:.2f}")
        del kept, segments
    return ", ".join(parts)


COSTS: tuple[Callable[[Path], str], ...] = (operator_costs, block_costs)


def _try(claim: Callable[[Path], Seen], folder: Path) -> bool:
    about = (claim.__doc__ or "").partition("\n")[0]
    try:
        seen = claim(folder)
    except Exception as error:  # noqa: BLE001 - the next claim is worth having without it
        seen = Seen("no exception", f"{type(error).__name__}: {error}", holds=False)
    verdict = {True: HOLDS, False: VIOLATED, None: "not told"}[seen.holds]
    detail = f"expected {seen.expected}; was {seen.was}"
    print(f"{verdict:9} {claim.__name__}: {about} {detail}", flush=True)
    write(f"claim {claim.__name__}", verdict, detail)
    return seen.holds is not False


def main() -> int:
    names = sys.argv[1:]
    every = {function.__name__: function for function in (*CLAIMS, *COSTS)}
    if unknown := set(names) - set(every):
        print(f"no such claim: {', '.join(sorted(unknown))}; there are {', '.join(every)}")
        return 2
    if not torch.cuda.is_available():
        print("no CUDA device: nothing was tried")
        return 0
    held = True
    importlib.import_module("torch._inductor.codecache")  # else the first snapshot imports it
    with tempfile.TemporaryDirectory() as name:
        for claim in CLAIMS:
            if not names or claim.__name__ in names:
                held &= _try(claim, Path(name))
                gc.collect()
        for cost in COSTS:
            if not names or cost.__name__ in names:
                about = (cost.__doc__ or "").partition("\n")[0]
                was = cost(Path(name))
                print(f"{MEASURED:9} {cost.__name__}: {about} {was}", flush=True)
                write(f"cost {cost.__name__}", MEASURED, f"{about} {was}")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
