from __future__ import annotations

import collections
import contextvars
import copy
import functools
import itertools
import queue
import random
import threading
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import ClassVar

import torch
from torch import nn

Step = Callable[[int], None]
def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))


def trainer(model: nn.Module, optimizer: torch.optim.Optimizer, batch: int = 8):
    def train() -> torch.Tensor:
        loss = model(torch.randn(batch, 16)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return train


def validation_with_a_local_list():
    model = mlp()
    train = trainer(model, torch.optim.Adam(model.parameters()))

    def validate():
        with torch.no_grad():
            outputs = [model(torch.randn(32, 16)) for _ in range(4)]
        return torch.cat(outputs).mean().item()

    def step(i):
        train()
        if i % 5 == 4:
            validate()

    return step


def main(path, steps=40):
    import memprof

    with memprof.track(path, sources=["cpu"], allowance_s=600) as tracker:
        step = validation_with_a_local_list()
        for i in range(steps):
            step(i)
            tracker.step()
