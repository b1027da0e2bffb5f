"""create-graph: gradients hold the graph that made them, and that graph the parameters."""

from __future__ import annotations

import warnings

import torch
from torch import nn


def fires():
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    def step(number):
        x = torch.randn(64, 64, requires_grad=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that it makes a cycle
            model(x).sum().backward(create_graph=True)
        x.grad.norm(2, 1).sub(1).square().mean().item()

    return step


def looks_alike():
    """The same penalty by `torch.autograd.grad`, beside predictions that pile up."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    kept = []

    def step(number):
        x = torch.randn(64, 64, requires_grad=True)
        out = model(x)
        (grad,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        grad.norm(2, 1).sub(1).square().mean().backward()
        model.zero_grad()
        kept.append(out)

    return step
