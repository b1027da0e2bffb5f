"""What recording CPU tensors costs, in a window and between windows, beside torch.profiler.

Seconds are those of the processor, in one thread, in the best of several rounds: so other programs
on the machine disturb them least.
The profiler records memory and stacks, and the time in which it stops is counted: it does most of
its work then. What a recording does once (find what is alive as it opens, search for holders after
8, 12, 16, 24, 32 … steps and at its end) has an allowance of its own and is printed apart.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode

import memprof
from memprof.sources.boundaries import Boundaries
from memprof.sources.cpu import CpuSource
from memprof.sources.protocol import Interner

Step = Callable[[], None]

ROUNDS = 5
ENDLESS_S = 1e6
"""An allowance that keeps the first window open."""
IN_WINDOW, BETWEEN = 1 / 3, 0.01
"""What is aimed at: a window's share of the profiler's extra cost, and the cost between windows."""


@dataclass
class Job:
    """A training step, and so many of them that no search for holders falls into the later ones."""

    step: Step
    before: int
    steps: int
    once_s: list[float] = field(default_factory=list)
    """Opening and closing recordings took so long, the steps ``before`` and their searches too."""

    def per_step(self, count: int = 0) -> float:
        count = count or self.steps
        began = time.process_time()
        for _ in range(count):
            self.step()
        return (time.process_time() - began) / count


def tiny() -> Job:
    """A training step of tiny operators: all of its time is overhead of torch itself."""
    model = nn.Sequential(*(m for _ in range(6) for m in (nn.Linear(8, 8), nn.Tanh())))
    return Job(_step(model, torch.randn(4, 8)), before=128, steps=60)


def real() -> Job:
    """A small transformer layer stack at a size at which the kernels take the time."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, dropout=0.0)
    encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    return Job(_step(encoder, torch.randn(8, 64, 256)), before=16, steps=7)


def _step(model: nn.Module, x: torch.Tensor) -> Step:
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def plain(job: Job) -> float:
    return job.per_step()


def between(job: Job) -> float:
    """Between windows, when the hooks on modules are gone."""
    return _tracked(job, max_events=0)


def window(job: Job) -> float:
    """In a window of a whole recording, which writes its file."""
    return _tracked(job)


def _tracked(job: Job, **options: int) -> float:
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "run.json"))
        tracker = memprof.start(path, allowance_s=ENDLESS_S, **options)
        job.per_step(job.before)
        took = job.per_step()
        tracker.stop()
    if not options:
        job.once_s.append(time.process_time() - began - took * (job.before + job.steps))
    return took


def drained(job: Job) -> float:
    """The source alone, drained at every step's end; a recording drains ten times a second."""
    interner = Interner()
    boundaries = Boundaries(interner)
    source = CpuSource(interner, boundaries)
    boundaries.open(lambda _: source.drain() and None)
    source.open()
    source.begin_window()
    job.per_step(2)
    took = job.per_step()
    source.close()
    boundaries.close()
    return took


def floor(job: Job) -> float:
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


def profiled(job: Job) -> float:
    """Under torch.profiler, stopping included."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    began = time.process_time()
    with torch.profiler.profile(activities=kinds, profile_memory=True, with_stack=True):
        job.per_step()
    return (time.process_time() - began) / job.steps


def main() -> None:
    torch.set_num_threads(1)
    for make in (tiny, real):
        job = make()
        job.per_step(5)
        ways = (plain, between, floor, window, drained, profiled)
        taken: dict[str, list[float]] = {way.__name__: [] for way in ways}
        for _ in range(ROUNDS):  # in turns, so that a slow moment of the machine hits all
            for way in ways:
                taken[way.__name__].append(way(job))
        tell(make.__name__, {name: min(times) for name, times in taken.items()})
        print(f"{make.__name__:5} once a recording: {median(job.once_s):.2f} s\n")


def tell(name: str, took: dict[str, float]) -> None:
    """Print times, ratios, and how they stand to the aims."""
    base = took["plain"]
    for way, seconds in took.items():
        print(f"{name:5} {way:8} {seconds * 1e3:8.3f} ms a step  {seconds / base:6.3f} x")
    profiler = took["profiled"] - base
    for way in ("floor", "drained"):
        print(f"{name:5} {way} adds {(took[way] - base) / profiler:.2f} of what the profiler adds")
    _judge(name, "a window", (took["window"] - base) / profiler, "of the profiler", IN_WINDOW)
    _judge(name, "between windows", took["between"] / base - 1, "of the step", BETWEEN)


def _judge(name: str, what: str, share: float, of: str, aim: float) -> None:
    met = "met" if share <= aim else "not met"
    print(f"{name:5} {what} adds {share:.3f} {of}; the aim is at most {aim:.3f}: {met}")


if __name__ == "__main__":
    main()
