"""no-backward: graphs are built and kept where nothing ever runs a backward pass."""

from __future__ import annotations

import torch
from torch import nn


def job():
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))


def fires():
    model, scores = job(), []

    def step(number):
        scores.append(model(torch.randn(64, 64)).square().mean())

    return step


def looks_alike():
    """The same in a job that trains: the graph may be wanted."""
    model, scores = job(), []

    def step(number):
        model(torch.randn(64, 64)).square().mean().backward()
        model.zero_grad()
        scores.append(model(torch.randn(64, 64)).square().mean())

    return step
