"""old-graphs: by what backward passes did with graphs, where the source does not tell."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of


class Rollout:
    def __init__(self):
        self.values, self.scores = [], []

    def add(self, value, score):
        self.values.append(value)
        self.scores.append(score)

    def clear(self):
        self.values.clear()
        self.scores.clear()

    def advantages(self):
        made, last = [], torch.zeros(1)
        for kept, score in zip(reversed(self.values), self.scores, strict=True):
            value = kept
            value = value.detach()
            last = score.detach() - value + 0.9 * last
            made.append(last)
        return torch.stack(made)


def rolls_out():
    """By the source a backward pass may go through what is kept; no recorded one has."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh())
    critic = nn.Sequential(nn.Linear(64, 64), nn.Tanh())
    rollout = Rollout()

    def step(number):
        if number % 4 == 3:
            wanted = rollout.advantages().mean()
            rollout.clear()
            (model(torch.randn(64, 64)).mean() - wanted).square().backward()
            model.zero_grad()
        hidden = critic(torch.randn(2048, 64))
        rollout.add(hidden.mean(), hidden.amax())
        model(torch.randn(64, 64)).square().mean().backward()
        model.zero_grad()

    return step


def test_graphs_that_were_let_go_of_without_a_backward_pass_were_for_nothing(tmp_path):
    found = findings_of(rolls_out, tmp_path / "run.json", steps=40)[0]
    assert (found.rule, found.minor) == ("old-graphs", False)
    # Two lists keep each pass: to detach for one of them saves nothing.
    first, second, *_ = found.remedies
    assert (first.fix, first.code) == ("no_grad", "hidden = critic(torch.randn(2048, 64))")
    assert (second.fix, second.code) == ("detach", "self.scores.append(score)")
