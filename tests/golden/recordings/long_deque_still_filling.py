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


def long_deque_still_filling():
    recent = collections.deque(maxlen=100)

    def step(i):
        recent.append(torch.randn(16, 16))

    return step


def main(path, steps=40):
    import memprof

    with memprof.track(path, sources=["cpu"], allowance_s=600) as tracker:
        step = long_deque_still_filling()
        for i in range(steps):
            step(i)
            tracker.step()
