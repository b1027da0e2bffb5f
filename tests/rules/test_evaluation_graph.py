"""evaluation-graph: a forward pass keeps its activations for a backward pass that never comes."""

from __future__ import annotations

import torch
from torch import nn


def job():
    model = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(64, 64), nn.Tanh())))
    return model, torch.optim.SGD(model.parameters(), 0.1)


def trained(model, optimizer):
    model(torch.randn(256, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def fires():
    model, optimizer = job()

    def step(number):
        trained(model, optimizer)
        model(torch.randn(1024, 64)).square().mean().item()

    return step


def looks_alike():
    model, optimizer = job()

    def step(number):
        trained(model, optimizer)
        with torch.no_grad():
            model(torch.randn(1024, 64)).square().mean().item()

    return step
