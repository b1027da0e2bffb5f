"""Jobs on a stand-in for CUDA that run out of memory, and their recording; no test is here."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import torch

import memprof
from memprof.loading import load
from memprof.sources.cuda.snapshot_source import CudaSource
from memprof.testing.cuda import StandInOutOfMemoryError, TorchStandIn

MIB = 1 << 20


def recorder(monkeypatch, tmp_path) -> Callable[..., memprof.Run]:
    """Records a function of a stand-in into a run file, and reads it back."""

    def record(stand_in: TorchStandIn, job, **options) -> memprof.Run:
        monkeypatch.setattr(
            "memprof.record.session.event_sources",
            lambda _, interner, loop_watch, __: [CudaSource(interner, loop_watch, stand_in)],
        )
        path = tmp_path / "run.json"
        with suppress(StandInOutOfMemoryError), memprof.track(path, sources=("cuda",), **options):
            job(stand_in)
        return load(path)

    return record


def leaking(stand_in: TorchStandIn) -> None:
    """4 MiB more in every step."""
    kept = []
    stand_in.alloc(20 * MIB)
    for _ in range(100):
        kept.append(stand_in.alloc(4 * MIB))
        stand_in.free(stand_in.alloc(16 * MIB))
        memprof.step()


def peaking(stand_in: TorchStandIn) -> None:
    """120 MiB in the last step."""
    for _ in range(3):
        stand_in.free(stand_in.alloc(30 * MIB))
        memprof.step()
    for _ in range(12):
        stand_in.alloc(10 * MIB)


def fragmented(stand_in: TorchStandIn) -> None:
    """40 MiB, where 30 are cached behind 8 that are in use."""
    stand_in.free(stand_in.alloc(30 * MIB))
    stand_in.alloc(8 * MIB)  # in the front of the segment, which cannot be given back any more
    memprof.step()
    stand_in.alloc(40 * MIB)


class Layer(torch.nn.Linear):
    """3 MiB for a moment, then 4, 6 and 2 MiB for the backward pass, of the device ``stand_in``."""

    def __init__(self, stand_in: TorchStandIn, kept: list[int]) -> None:
        super().__init__(4, 4)
        self.stand_in, self.kept = stand_in, kept

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As a linear layer."""
        moment = self.stand_in.alloc(3 * MIB)
        self.kept.append(self.stand_in.alloc(4 * MIB))
        self.kept.append(self.stand_in.alloc(6 * MIB))
        self.kept.append(self.stand_in.alloc(2 * MIB))
        self.stand_in.free(moment)
        return super().forward(x)


class Training:
    """Six such layers, 24 MiB of weights, backward passes that free, and 200 steps."""

    def __init__(self, at_step: Callable[[TorchStandIn, int], object]) -> None:
        """``at_step`` is called at each step's end, before the next one."""
        self.at_step = at_step

    def __call__(self, stand_in: TorchStandIn) -> None:
        """Train until memory runs out."""
        kept: list[int] = []
        model = torch.nn.Sequential(*[Layer(stand_in, kept) for _ in range(6)])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        stand_in.alloc(24 * MIB)
        for step in range(200):
            loss = model(torch.ones(1, 4)).sum()
            with stand_in.backward_thread():
                while kept:
                    stand_in.free(kept.pop())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            self.at_step(stand_in, step)
