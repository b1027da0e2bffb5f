"""Kernels of frequencies that come of NumPy, in a file that names no type; no test is here."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

__all__ = [
    "LENGTH",
    "STATES",
    "kept_wide",
    "of_narrow_frequencies",
    "typed_as_frequencies",
]

STATES, LENGTH = 64, 512


class Kernel(nn.Module):
    """Takes the type of its frequencies, and gives it up with its result."""

    def __init__(self, frequencies):
        super().__init__()
        self.scale = nn.Parameter(torch.full((STATES,), 0.5))
        self.frequencies = nn.Parameter(frequencies)

    def forward(self):
        rates = self.scale.exp().to(self.frequencies.dtype) * self.frequencies
        return torch.sin(rates[:, None] * torch.arange(LENGTH))


def frequencies():
    return torch.from_numpy(np.linspace(0, 1, STATES))


def job(kernel, narrow):
    head = nn.Linear(LENGTH, 4)

    def step(_):
        kernel.zero_grad()
        head(narrow(kernel())).square().mean().backward()

    return step


def typed_as_frequencies():
    return job(Kernel(frequencies()), torch.Tensor.float)


def of_narrow_frequencies():
    return job(Kernel(frequencies().float()), torch.Tensor.float)


def kept_wide():
    """Nothing of it is made narrow."""
    kernel = Kernel(frequencies())

    def step(_):
        kernel.zero_grad()
        kernel().square().mean().backward()

    return step
