"""What recording CPU tensors costs and what it sees, beside torch.profiler, in turns in one run.

Seconds are those of the processor, in one thread, in the best of several rounds: so other programs
on the machine disturb them least. The profiler records memory and stacks, and the time in which it
stops is counted: it does most of its work then.

What a recording does once or now and then is told apart: finding what is alive as a window begins,
the search for holders after 8, 12, 16, 24, 32 ... steps, the last one. A window is measured twice:
with a dispatch mode, and with the native part where there is one.

The C library's allocator keeps what it was given back. Else it returns the top of the heap to the
system after a step or not, by what happens to lie above it: hundreds to thousands of page faults a
step, in one process without memprof as much as between one and another.
"""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import numpy as np
import torch
from native_part import has_native_part, native_part
from recordings import check
from stalls import LEAK_SEARCH, Held, Stalls
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode

import memprof
from memprof.loading import load
from memprof.trace import Action, Trace

ROUNDS = 5
PAIRS = 15
"""Further rounds without memprof and between windows, whose difference is small."""
WARMING_STEPS = 3
SIGHT_STEPS = 3
ENDLESS_S = 1e6
"""An allowance that keeps the first window open."""
TINY_SHARE, REAL_SHARE, BETWEEN_SHARE, STALL_S = 1 / 3, 1.0, 0.01, 0.5
"""What is aimed at: a window's share of what the profiler adds, the share of a step between windows,
and the longest that a job is held up."""
PLAIN, BETWEEN, FLOOR, PROFILER = "plain", "between windows", "empty mode", "torch.profiler"
MODE, NATIVE = "window, dispatch mode", "window, native part"


class Job:
    """A model, its optimizer and a batch; a call is a training step."""

    def __init__(self, make: Callable[[], tuple[nn.Module, torch.Tensor]], steps: int) -> None:
        self.make, self.steps = make, steps
        self.model, self.x = make()
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def step(self) -> None:
        self.model(self.x).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def per_step(self, count: int = 0) -> float:
        count = count or self.steps
        began_s = time.process_time()
        for _ in range(count):
            self.step()
        return (time.process_time() - began_s) / count


def tiny() -> tuple[nn.Module, torch.Tensor]:
    """Tiny operators: all of the time is overhead of torch itself."""
    layers = (layer for _ in range(6) for layer in (nn.Linear(8, 8), nn.Tanh()))
    return nn.Sequential(*layers), torch.randn(4, 8)


def transformer() -> tuple[nn.Module, torch.Tensor]:
    """A small one, at a size at which the kernels take the time."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), torch.randn(8, 64, 256)


def convolutions() -> tuple[nn.Module, torch.Tensor]:
    """Operators that take memory of their own while they run."""
    layers = (nn.Conv2d(inside, 32, 3, padding=1) for inside in (3, 32, 32))
    return nn.Sequential(*(m for layer in layers for m in (layer, nn.ReLU()))), torch.randn(
        8, 3, 64, 64
    )


Make = Callable[[], tuple[nn.Module, torch.Tensor]]
JOBS: dict[str, tuple[Make, int, float]] = {
    "tiny": (tiny, 60, TINY_SHARE),
    "transformer": (transformer, 7, REAL_SHARE),
}
"""How each is made, the steps of a measurement, and the aim."""
SEEN: dict[str, Make] = {"tiny": tiny, "transformer": transformer, "convolutions": convolutions}
"""Those of which it is told what is seen."""


# -- cost ------------------------------------------------------------------------------------------


@dataclass
class Taken:
    """Seconds a step of every measurement of a job, by the name of the way."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    held: dict[str, dict[str, Held]] = field(default_factory=dict)
    """What held the job up, by the name of the window and the kind."""


def plain(job: Job, _: Taken) -> float:
    return job.per_step()


def between(job: Job, _: Taken) -> float:
    """With nothing but what a job has between windows."""
    with _run_path() as path, memprof.track(path, max_events=0):
        job.per_step(WARMING_STEPS)
        return job.per_step()


def window(job: Job, taken: Taken, *, native: bool) -> float:
    """In a window of a whole recording, which writes its file."""
    with _run_path() as path, native_part(used=native), Stalls() as stalls:
        search = stalls.held[LEAK_SEARCH]
        with memprof.track(path, allowance_s=ENDLESS_S, max_events=100_000_000):
            job.per_step(WARMING_STEPS)
            before_s = search.processor_s
            took = job.per_step() - (search.processor_s - before_s) / job.steps
        check(path, "cpu", job.steps)
    all_held = taken.held.setdefault(NATIVE if native else MODE, {})
    for kind, held in stalls.held.items():
        all_held.setdefault(kind, Held()).add(held)
    return took


def floor(job: Job, _: Taken) -> float:
    """Under a dispatch mode that does nothing: what it costs to see every operator in Python."""
    with _mode():
        return job.per_step()


@contextmanager
def _mode() -> Iterator[None]:
    kind = type("Floor", (TorchDispatchMode,), {})
    # Set afterwards: in a class body torch wraps it, which costs 60 µs a call.
    kind.__torch_dispatch__ = _pass_on
    _push_mode(kind())
    try:
        yield
    finally:
        _pop_mode()


def _pass_on(_mode: object, func, _types, args=(), kwargs=None):
    return func._op(*args, **kwargs) if kwargs else func._op(*args)


def profiled(job: Job, _: Taken) -> float:
    """Under torch.profiler, stopping included."""
    began_s = time.process_time()
    with _profiler():
        job.per_step()
    return (time.process_time() - began_s) / job.steps


def _profiler(*, with_stack: bool = True) -> torch.profiler.profile:
    kinds = [torch.profiler.ProfilerActivity.CPU]
    return torch.profiler.profile(activities=kinds, profile_memory=True, with_stack=with_stack)


@contextmanager
def _run_path() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        yield str(Path(folder, "run.json"))


def ways() -> dict[str, Callable[[Job, Taken], float]]:
    """Name and measurement of each."""
    found: dict[str, Callable[[Job, Taken], float]] = {PLAIN: plain, BETWEEN: between}
    found |= {FLOOR: floor, MODE: partial(window, native=False)}
    if has_native_part():
        found[NATIVE] = partial(window, native=True)
    found[PROFILER] = profiled
    return found


# -- sight -----------------------------------------------------------------------------------------


def seen_by_profiler(program: Callable[[], None]) -> int:
    """The most bytes in use at once, by every allocation and release of torch's CPU allocator."""
    with _profiler(with_stack=False) as profile:  # some names of frames cannot be read back
        program()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    order = np.argsort([event.start_ns() for event in events], kind="stable")
    sizes = np.array([event.nbytes() for event in events])[order]
    return int(np.cumsum(sizes).max(initial=0))


def seen_by_memprof(program: Callable[[], None], *, native: bool) -> int:
    """The same of what a recording holds."""
    with _run_path() as path:
        with native_part(used=native), memprof.track(path, allowance_s=ENDLESS_S):
            program()
        device = load(path).device("cpu")
        return max((_peak(one) for one in device.windows), default=0) if device else 0


def _peak(trace: Trace) -> int:
    """Of bytes as they were asked for, above those that were there in the beginning."""
    made = trace.events.action == Action.ALLOC
    freed = trace.events.action == Action.FREE_REQUESTED
    change = np.where(made, 1, np.where(freed, -1, 0)) * trace.events.size
    return int(np.cumsum(change).max(initial=0))


def _whole(name: str) -> None:
    """A job from its model's construction on."""
    Job(SEEN[name], SIGHT_STEPS).per_step()


# -- telling ---------------------------------------------------------------------------------------


def measured(name: str) -> Taken:
    """Every way of one job, in turns, so that a slow moment of the machine hits all."""
    make, steps, _ = JOBS[name]
    job, taken, todo = Job(make, steps), Taken(), ways()
    job.per_step(5)
    for round_ in range(ROUNDS + PAIRS):
        for way, measure in list(todo.items()):
            if round_ >= ROUNDS and way not in (PLAIN, BETWEEN):
                continue
            try:
                taken.seconds.setdefault(way, []).append(measure(job, taken))
            except RuntimeError as error:
                print(f"{name:12} {way} is not told: {error}")
                del todo[way], taken.seconds[way]
                taken.held.pop(way, None)
            gc.collect()
    return taken


def tell_cost(name: str, taken: Taken) -> None:
    """Print times, ratios, and how they stand to the aims."""
    took = {way: min(seconds) for way, seconds in taken.seconds.items()}
    base = took[PLAIN]
    for way, seconds in took.items():
        print(f"{name:12} {way:22} {seconds * 1e3:8.3f} ms a step  {seconds / base:7.3f} x")
    profiler = took[PROFILER] - base
    print(f"{name:12} {FLOOR} adds {(took[FLOOR] - base) / profiler:.2f} of what the profiler adds")
    for way in (MODE, NATIVE):
        if way in took:
            share = (took[way] - base) / profiler
            _judge(
                f"{name:12} {way} adds {share:.2f} of what the profiler adds", share, JOBS[name][2]
            )
    pairs = sorted(b / a for a, b in zip(taken.seconds[PLAIN], taken.seconds[BETWEEN], strict=True))
    print(f"{name:12} {BETWEEN} takes {pairs[len(pairs) // 2]:.3f} x in the median of the rounds")
    share = took[BETWEEN] / base - 1
    _judge(f"{name:12} {BETWEEN} adds {share:.3f} of the step", share, BETWEEN_SHARE)
    for way, all_held in taken.held.items():
        for kind, held in all_held.items():
            longest_s = held.longest_processor_s
            told = f"longest {longest_s * 1e3:.0f} ms, {held.calls} take {held.processor_s:.2f} s"
            _judge(f"{name:12} {way}: {kind}: {told}", longest_s, STALL_S)


def _judge(told: str, value: float, aim: float) -> None:
    print(f"{told}; the aim is at most {aim:.2f}: {'met' if value <= aim else 'not met'}")


def tell_sight(name: str) -> None:
    """Print the peak of a job from its start as each of them saw it."""
    program = partial(_whole, name)
    whole = seen_by_profiler(program)
    print(f"{name:12} peak by torch.profiler's allocator events {whole} bytes")
    for way, native in ((MODE, False), (NATIVE, True)):
        if not native or has_native_part():
            seen = seen_by_memprof(program, native=native)
            print(f"{name:12} peak in a {way} {seen} bytes, {seen / whole:.4f} of it")


def keep_memory() -> None:
    """Have glibc return nothing to the system, see above; elsewhere nothing is done."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option in (-1, -3):  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD
            mallopt(option, 1 << 30)


def main() -> None:
    torch.set_num_threads(1)
    keep_memory()
    native = "with" if has_native_part() else "without"
    print(
        f"torch {torch.__version__}, Python {platform.python_version()}, memprof "
        f"{memprof.__version__}, {native} its native part, {os.cpu_count()} cores, "
        f"load {os.getloadavg()[0]:.1f}, {datetime.now(timezone.utc):%Y-%m-%d}"
    )
    for name in JOBS:
        tell_cost(name, measured(name))
        print(flush=True)
    for name in SEEN:
        tell_sight(name)


if __name__ == "__main__":
    main()
