"""What a window of the CPU source costs, beside torch.profiler with memory and stacks."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import nn

from memprof.sources.boundaries import Boundaries
from memprof.sources.cpu import CpuSource
from memprof.sources.protocol import Interner

STEPS, ROUNDS = 40, 3


def tiny() -> Callable[[], None]:
    """A training step of tiny operators: all of its time is overhead of torch itself."""
    model = nn.Sequential(*(m for _ in range(6) for m in (nn.Linear(8, 8), nn.Tanh())))
    return _step(model, torch.randn(4, 8))


def real() -> Callable[[], None]:
    """A small transformer layer stack at a size at which the kernels take the time."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, dropout=0.0)
    return _step(
        nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), torch.randn(8, 64, 256)
    )


def _step(model: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def per_step(step: Callable[[], None], count: int = STEPS) -> float:
    began = time.perf_counter()
    for _ in range(count):
        step()
    return (time.perf_counter() - began) / count


def plain(step: Callable[[], None]) -> float:
    return per_step(step)


def recorded(step: Callable[[], None], *, window: bool = True) -> float:
    boundaries = Boundaries(Interner())
    source = CpuSource(boundaries._interner, boundaries)
    boundaries.open(lambda _: source.drain() and None)
    source.open()
    step()
    step()  # after this the hooks on modules are gone, unless a window is open
    if window:
        source.begin_window()
        step()
    took = per_step(step)
    source.close()
    boundaries.close()
    return took


def between(step: Callable[[], None]) -> float:
    return recorded(step, window=False)


def profiled(step: Callable[[], None]) -> float:
    """With the time that the profiler takes to stop, in which it does most of its work."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    began = time.perf_counter()
    with torch.profiler.profile(activities=kinds, profile_memory=True, with_stack=True):
        per_step(step)
    return (time.perf_counter() - began) / STEPS


def main() -> None:
    torch.set_num_threads(1)
    for make in (tiny, real):
        step = make()
        per_step(step, 5)
        ways = (plain, between, recorded, profiled)
        taken = {way.__name__: [] for way in ways}
        for _ in range(ROUNDS):  # in turns, so that a slow moment of the machine hits all
            for way in ways:
                taken[way.__name__].append(way(step))
        took = {name: median(times) for name, times in taken.items()}
        extra = (took["recorded"] - took["plain"]) / (took["profiled"] - took["plain"])
        for name, seconds in took.items():
            ratio = seconds / took["plain"]
            print(f"{make.__name__:5} {name:9} {seconds * 1e3:8.3f} ms a step  {ratio:6.3f} x")
        print(f"{make.__name__:5} a window's extra cost is {extra:.2f} of the profiler's\n")


if __name__ == "__main__":
    main()
