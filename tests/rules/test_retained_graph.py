"""retained-graph: activations stay after the step's last backward pass, until the next step."""

from __future__ import annotations

import torch
from torch import nn


def job():
    model = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(64, 64), nn.Tanh())))
    return model, torch.optim.SGD(model.parameters(), 0.1)


def fires():
    model, optimizer = job()
    kept = {}

    def step(number):
        kept["loss"] = model(torch.randn(512, 64)).square().mean()
        kept["loss"].backward(retain_graph=True)
        optimizer.step()
        optimizer.zero_grad()

    return step


def looks_alike():
    """The loss stays, and its graph went with the backward pass."""
    model, optimizer = job()
    kept = {}

    def step(number):
        kept["loss"] = model(torch.randn(512, 64)).square().mean()
        kept["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
