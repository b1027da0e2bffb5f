"""Where a program has no gradients at all, nothing is to be detached: no graph is to be made."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of

SIZE = 64


def job():
    return nn.Sequential(nn.Linear(SIZE, SIZE), nn.Tanh(), nn.Linear(SIZE, SIZE))


class Monitor:
    """A moving average of what a service answers."""

    def __init__(self):
        self.mean = torch.zeros(SIZE)

    def update(self, answers):
        self.mean = 0.9 * self.mean + 0.1 * answers.mean(0)


def monitored():
    model, monitor = job(), Monitor()

    def step(number):
        answers = model(torch.randn(SIZE, SIZE))
        monitor.update(answers)

    return step


class Rollout:
    def __init__(self, model):
        self.model = model
        self.state = torch.zeros(SIZE, SIZE)

    def advance(self):
        self.state = self.model(self.state)


def simulated():
    rollout = Rollout(job())

    def step(number):
        rollout.advance()

    return step


def collected():
    model, answers = job(), []

    def step(number):
        answers.append(model(torch.randn(SIZE, SIZE)).square().mean())

    return step


@pytest.mark.parametrize(
    ("program", "rule", "code"),
    [
        (monitored, "assigned-history", "answers = model(torch.randn(SIZE, SIZE))"),
        (simulated, "carried-state", "self.state = self.model(self.state)"),
        (collected, "kept-graph", "answers.append(model(torch.randn(SIZE, SIZE)).square().mean())"),
    ],
)
def test_no_graph_is_made_where_the_model_is_called(program, rule, code, tmp_path):
    found, *_ = findings_of(program, tmp_path / "run.json")
    first, second, *_ = found.remedies
    assert (first.fix, first.rule, first.code) == ("no_grad", "no-backward", code)
    assert (second.fix, second.rule) == ("detach", rule)
    assert found.rule == rule
    assert first.peak_after <= second.peak_after
