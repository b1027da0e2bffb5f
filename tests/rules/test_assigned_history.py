"""assigned-history: an attribute or a buffer is assigned a tensor with the graph that made it."""

from __future__ import annotations

import torch
from torch import nn


class Momentum(nn.Module):
    """Keeps a running mean of its outputs, with or without their graph."""

    def __init__(self, *, cut_off: bool):
        super().__init__()
        self.layer, self.cut_off = nn.Linear(64, 64), cut_off
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, x):
        mixed = self.layer(x).tanh().mean(0) + 0.9 * self.mean
        if self.cut_off:
            self.mean = mixed.detach()
        else:
            self.mean = mixed
        return x


def fires():
    layer = Momentum(cut_off=False)

    def step(number):
        layer(torch.randn(64, 64))

    return step


def looks_alike():
    """The buffer is assigned what is detached, and what is kept of each step is something else."""
    layer, kept = Momentum(cut_off=True), []

    def step(number):
        kept.append(layer(torch.randn(64, 64)))

    return step
