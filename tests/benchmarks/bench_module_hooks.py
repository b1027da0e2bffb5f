"""What a call of a module takes more in a window, beside what torch takes to call any hooks at all.

    python tests/benchmarks/bench_module_hooks.py

A chain of modules that do nothing is called, with a graph and without, each way in turns in one run.
The floor is a pair of hooks that do nothing: torch goes another way through a module's call as soon
as there is one. Times are the processor's, the least of many turns. No GPU is needed: what the
hooks of a window on CUDA do is the same without one.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timezone

import torch
from native_part import has_native_part

from memprof import native
from memprof.sources.cuda.label_timeline import LabelRecorder
from memprof.sources.loop.loop_watch import LoopWatch
from memprof.sources.loop.module_hooks import ModuleHooks
from memprof.sources.native_rows import RowLabels
from memprof.sources.protocol import Interner

MODULES = 100
NextStep = Callable[[], object]
Way = Callable[[], AbstractContextManager[NextStep]]
"""Measured inside; it gives what ends a step, which is not measured."""


class Scaling(torch.nn.Module):
    """One node of a graph, where gradients are wanted."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 1.0


@contextmanager
def plain() -> Iterator[NextStep]:
    """Without hooks."""
    yield int


@contextmanager
def empty() -> Iterator[NextStep]:
    """The floor in Python."""
    hooks = ModuleHooks(lambda _module, _args: None, lambda _module, _args, _output: None)
    hooks.add()
    yield int
    hooks.remove()


@contextmanager
def empty_in_c() -> Iterator[NextStep]:
    """The floor in C++: the native part's hooks while nothing is recorded."""
    part = native.load()
    assert part is not None
    hooks = ModuleHooks(part.calls_before, part.calls_after)
    hooks.add()
    yield int
    hooks.remove()


@contextmanager
def opened() -> Iterator[LoopWatch]:
    """Boundaries of a recording in a loop that marks its steps."""
    loop_watch = LoopWatch(Interner())
    loop_watch.open(lambda _: None)
    loop_watch.step_done()
    yield loop_watch
    loop_watch.close()
    assert not loop_watch.notes()


@contextmanager
def in_python() -> Iterator[NextStep]:
    """What a window on CUDA does where torch's recorder is read."""
    with opened() as loop_watch:
        recorder = LabelRecorder(loop_watch)
        recorder.start()
        yield int
        recorder.stop()


@contextmanager
def natively() -> Iterator[NextStep]:
    """What a window does with the native part."""
    with opened() as loop_watch:
        labels = RowLabels(Interner(), loop_watch, native.load())
        labels.start()
        yield int
        labels.stop()


def microseconds(way: Way, model: torch.nn.Module, x: torch.Tensor, turns: int) -> float:
    """Of the processor, for a module: its call and, with a graph, its part of the backward pass."""
    least_ns = None
    with way() as end_step:
        for _ in range(turns):
            began_ns = time.process_time_ns()
            y = model(x)
            if x.requires_grad:
                y.backward()
            taken_ns = time.process_time_ns() - began_ns
            x.grad = None
            end_step()
            least_ns = taken_ns if least_ns is None else min(least_ns, taken_ns)
    gc.collect()
    assert least_ns is not None
    return least_ns / 1000 / MODULES


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turns", type=int, default=200, help="of each way in a round")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(Scaling() for _ in range(MODULES - 1)))  # it is one, too
    ways: dict[str, Way] = {
        "plain": plain,
        "a pair of hooks that do nothing, in Python": empty,
        "a window, in Python": in_python,
    }
    if has_native_part():
        ways |= {
            "a pair of hooks that do nothing, in C++": empty_in_c,
            "a window, native part": natively,
        }
    print("microseconds a module       no graph   more   with its backward pass   more")
    found: dict[str, list[list[float]]] = {name: [[], []] for name in ways}
    for _ in range(options.rounds):
        for name, way in ways.items():
            for kind, x in enumerate((torch.ones(1), torch.ones(1, requires_grad=True))):
                found[name][kind].append(microseconds(way, model, x, options.turns))
    least = {name: [min(times) for times in kinds] for name, kinds in found.items()}
    for name, (bare, graph) in least.items():
        more = [one - plain for one, plain in zip((bare, graph), least["plain"], strict=True)]
        print(f"{name:45} {bare:7.2f} {more[0]:+7.2f} {graph:10.2f} {more[1]:+7.2f}")
    print(
        f"\ntorch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores, "
        f"load {os.getloadavg()[0]:.1f}, {datetime.now(timezone.utc):%Y-%m-%d}"
    )


if __name__ == "__main__":
    main()
