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


def key_value_cache_of_a_generation():
    state = SimpleNamespace(cache=None)

    def step(i):
        if i % 12 == 0:
            state.cache = None
        new = torch.randn(1, 1, 16)
        state.cache = new if state.cache is None else torch.cat([state.cache, new], 1)

    return step


def main(path, steps=40):
    import memprof

    with memprof.track(path, sources=["cpu"], allowance_s=600) as tracker:
        step = key_value_cache_of_a_generation()
        for i in range(steps):
            step(i)
            tracker.step()
