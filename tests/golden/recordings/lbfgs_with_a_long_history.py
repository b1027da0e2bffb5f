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


def lbfgs_with_a_long_history():
    model = nn.Linear(16, 4)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1, history_size=100)
    data = torch.randn(64, 16), torch.randn(64, 4)

    def closure():
        optimizer.zero_grad()
        loss = (model(data[0]).tanh() - data[1]).pow(2).mean()
        loss.backward()
        return loss

    def step(i):
        optimizer.step(closure)

    return step


def main(path, steps=40):
    import memprof

    with memprof.track(path, sources=["cpu"], allowance_s=600) as tracker:
        step = lbfgs_with_a_long_history()
        for i in range(steps):
            step(i)
            tracker.step()
