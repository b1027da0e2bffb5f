"""assigned-history: an attribute or a buffer is assigned a tensor with the graph that made it."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of


class Centered(nn.Module):
    """Subtracts a running mean of its outputs, which it keeps with its graph."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.running_mean = torch.zeros(64)

    def forward(self, x):
        out = self.layer(x).tanh()
        mixed = 0.1 * out.mean(0) + 0.9 * self.running_mean
        self.running_mean = mixed
        return out - mixed


class CutOff(nn.Module):
    """The same with a running mean that has no graph, and the last outputs of a few steps."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.center = torch.zeros(64)
        self.outputs = []

    def forward(self, x):
        out = self.layer(x).tanh()
        mixed = 0.1 * out.mean(0) + 0.9 * self.center
        self.center = mixed.detach()
        self.outputs.append(out.detach())
        return out - mixed


def fires():
    layer = Centered()

    def step(number):
        layer(torch.randn(64, 64)).sum().item()

    return step


def looks_alike():
    layer = CutOff()

    def step(number):
        layer(torch.randn(64, 64)).sum().backward()

    return step


def test_what_is_assigned_is_to_be_assigned_without_its_graph(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "assigned-history"
    assert (first.fix, first.code) == ("detach", "self.running_mean = mixed")
