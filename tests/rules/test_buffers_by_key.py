"""assigned-history: buffers that are set by their key."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of, names

WIDTH = 64


class PowerIteration(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(WIDTH))
        self.register_buffer("estimate", torch.eye(WIDTH))

    def scale(self):
        following = torch.tanh(self.weight.t() @ self.estimate)
        self._buffers["estimate"] = torch.tanh(self.weight @ following)
        return following.mean()

    def forward(self, x):
        return x @ self.weight / self.scale().item()


class OfNumbers(PowerIteration):
    """Without a graph; what each step makes is kept in a list."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cut", torch.eye(WIDTH))
        self.estimates = []

    def scale(self):
        following = torch.tanh(self.weight.t() @ self.cut).detach()
        self._buffers["cut"] = following
        self.estimates.append(following)
        return following.mean()


def training(module):
    def program():
        model = module()

        def step(number):
            model(torch.ones(WIDTH, WIDTH)).square().mean().backward()
            model.zero_grad()

        return step

    return program


def test_the_line_that_sets_the_buffer_is_named(tmp_path):
    found, *_ = findings_of(training(PowerIteration), tmp_path / "run.json")
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("assigned-history", "detach")
    assert first.code == 'self._buffers["estimate"] = torch.tanh(self.weight @ following)'
    assert first.why.startswith("`self.estimate` keeps the graph")


def test_a_buffer_without_a_graph_is_none(tmp_path):
    assert "assigned-history" not in names(training(OfNumbers), tmp_path / "run.json")
