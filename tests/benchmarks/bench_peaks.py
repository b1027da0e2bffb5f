"""Peaks of twenty eager and compiled programs on the CPU, beside torch.profiler's own events.

``python tests/benchmarks/bench_peaks.py [--only NAME …]``: each program runs three times in this
process, under the profiler, in a recording with the native part and in one with a dispatch mode.
The aim is that the native part's peak is within 1 % of the profiler's. What is compiled is compiled
before: what a compiler does is no part of a program's peak.
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable
from datetime import datetime, timezone
from functools import cache, partial

import torch
from bench_cpu_source import seen_by_memprof, seen_by_profiler
from native_part import has_native_part
from torch import nn
from torch.utils.checkpoint import checkpoint

WITHIN = 0.01
STEPS = 3


def train(
    make: Callable[[], nn.Module],
    shape: tuple[int, ...],
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    **options: object,
) -> None:
    """A model from its construction on, and three steps of it."""
    model = make()
    _steps(model, shape, optimizer(model.parameters(), **options))


def _steps(model: nn.Module, shape: tuple[int, ...], optimizer: torch.optim.Optimizer) -> None:
    for _ in range(STEPS):
        out = model(torch.randn(*shape))
        (out[0] if isinstance(out, tuple) else out).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))


def convolutions() -> nn.Module:
    layers = (nn.Conv2d(c, 32, 3, padding=1) for c in (3, 32, 32))
    return nn.Sequential(*(one for layer in layers for one in (layer, nn.ReLU())))


def normalized() -> nn.Module:
    body = (nn.Conv2d(3, 32, 5, stride=2), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*body, nn.Flatten(), nn.LazyLinear(10))


def generator() -> nn.Module:
    first = nn.ConvTranspose2d(64, 32, 4), nn.BatchNorm2d(32), nn.ReLU()
    return nn.Sequential(*first, nn.ConvTranspose2d(32, 3, 4, stride=2), nn.Tanh())


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)


class Attention(nn.Module):
    """Attention that makes its scores."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(64, 192)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(x).chunk(3, -1)
        return torch.softmax(q @ k.mT / 8, -1) @ v


class Checkpointed(nn.Module):
    """Blocks whose activations are computed again."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(mlp() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def evaluates() -> None:
    model = convolutions().eval()
    with torch.no_grad():
        for _ in range(STEPS):
            model(torch.randn(16, 3, 64, 64)).mean().item()


def accumulates() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for number in range(4 * STEPS):
        model(torch.randn(64, 256)).square().mean().backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


def penalizes() -> None:
    model = mlp()
    for _ in range(STEPS):
        x = torch.randn(64, 256, requires_grad=True)
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        torch.autograd.grad(slope.square().sum(), list(model.parameters()), allow_unused=True)


def searches() -> None:
    model, x = mlp(), torch.randn(64, 256)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, history_size=4)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value = model(x).square().mean()
        value.backward()
        return value

    for _ in range(STEPS):
        optimizer.step(loss)


def narrow() -> None:
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.randn(256, 256)).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def sparse() -> None:
    table = nn.EmbeddingBag(20_000, 64, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters())
    for _ in range(STEPS):
        table(torch.randint(20_000, (64, 32))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def sorts() -> None:
    for _ in range(STEPS):
        x = torch.randn(256, 4096)
        order = x.sort(-1).indices
        x.gather(-1, order).cumsum(-1).topk(64).values.sum().item()
        torch.fft.rfft(x).abs().std().item()


@cache
def _compiled(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> nn.Module:
    model = torch.compile(make())
    _steps(model, shape, torch.optim.SGD(model.parameters(), 0.1))
    return model


def train_compiled(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    """Three steps of a model that has been compiled, with an optimizer that begins."""
    model = _compiled(make, shape)
    _steps(model, shape, torch.optim.AdamW(model.parameters()))


def normalized_mlp() -> nn.Module:
    return nn.Sequential(nn.LayerNorm(256), mlp(), nn.LayerNorm(256), mlp())


IMAGES, ROWS, WORDS = (8, 3, 64, 64), (256, 256), (8, 64, 128)
PROGRAMS: dict[str, Callable[[], None]] = {
    "a multilayer perceptron, AdamW": partial(train, mlp, ROWS),
    "the same, foreach=False": partial(train, mlp, ROWS, foreach=False),
    "convolutions": partial(train, convolutions, IMAGES),
    "convolutions, batch norm, pooling": partial(train, normalized, IMAGES),
    "transposed convolutions": partial(train, generator, (8, 64, 16, 16)),
    "an LSTM": partial(train, lambda: nn.LSTM(64, 128, 2, batch_first=True), (16, 50, 64)),
    "a GRU": partial(train, lambda: nn.GRU(64, 128, batch_first=True), (16, 50, 64)),
    "a transformer": partial(train, transformer, WORDS),
    "attention by hand": partial(train, Attention, (4, 256, 64)),
    "activation checkpointing": partial(train, Checkpointed, ROWS),
    "evaluation": evaluates,
    "accumulated gradients": accumulates,
    "a penalty on gradients": penalizes,
    "LBFGS": searches,
    "autocast": narrow,
    "sparse embeddings": sparse,
    "sorting, scans, a Fourier transform": sorts,
    "compiled: a multilayer perceptron": partial(train_compiled, mlp, ROWS),
    "compiled: convolutions": partial(train_compiled, convolutions, IMAGES),
    "compiled: attention by hand": partial(train_compiled, Attention, (4, 256, 64)),
    "compiled: layer norms": partial(train_compiled, normalized_mlp, ROWS),
}
COMPILED = "compiled: "


def main() -> None:
    """Print a row for each program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[])
    only = parser.parse_args().only
    torch.set_num_threads(1)
    load, date = os.getloadavg()[0], f"{datetime.now(timezone.utc):%Y-%m-%d}"
    print(
        f"torch {torch.__version__}, Python {platform.python_version()}, load {load:.1f}, {date}\n"
    )
    print("| program | torch.profiler | native part | dispatch mode |\n|---|---|---|---|")
    missed = []
    for name, program in PROGRAMS.items():
        if only and name not in only:
            continue
        torch.manual_seed(0)
        if name.startswith(COMPILED):
            program()
        peak = seen_by_profiler(program)
        shares = [
            seen_by_memprof(program, native=native) / peak if native <= has_native_part() else 0.0
            for native in (True, False)
        ]
        print(f"| {name} | {peak:,} | {shares[0]:.4f} | {shares[1]:.4f} |", flush=True)
        if abs(shares[0] - 1) > WITHIN:
            missed.append(name)
    print(f"\nwithin 1 % with the native part: {'all' if not missed else f'not {missed}'}")


if __name__ == "__main__":
    main()
