"""old-graphs: by a whole call, of which no backward pass freed anything, whatever keeps it."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [m for _ in range(3) for m in (nn.Linear(64, 64), nn.Tanh())]
        self.trunk, self.pi, self.v = nn.Sequential(*layers), nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x):
        h = self.trunk(x)
        return self.pi(h).softmax(1), self.v(h).tanh()


class Rollout:
    """What a policy did in a few steps, with what it gave for it."""

    def __init__(self):
        self.inputs, self.odds, self.values = [], [], []

    def add(self, x, odds, value):
        self.inputs.append(x)
        self.odds.append(odds)
        self.values.append(value)


def with_rollouts():
    """The policy learns from calls of its own; of the stored scores only numbers are used."""
    policy = Critic()
    held = [Rollout()]

    def collected():
        held[0] = Rollout()
        for _ in range(4):
            x = torch.randn(256, 64)
            odds, value = policy(x)
            held[0].add(x, odds.log(), value.exp())

    def step(number):
        if number % 4 == 0:
            collected()
        target = torch.stack(held[0].values).detach()[0]
        odds, value = policy(held[0].inputs[0])
        (odds.square() + value - target).mean().backward()
        policy.zero_grad()

    return step


def test_calls_that_no_backward_pass_went_through_need_no_graph(tmp_path):
    (found, *_) = findings_of(with_rollouts, tmp_path / "run.json", 40)
    assert found.rule == "old-graphs"
    first = found.remedies[0]
    assert (first.fix, first.code) == ("no_grad", "odds, value = policy(x)")
