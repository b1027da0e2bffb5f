"""old-graphs: several results of one pass are kept, each with its graph."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of


class Agent:
    """It keeps two results of each pass, and learns from neither."""

    def __init__(self):
        self.body = nn.Sequential(*(m for _ in range(2) for m in (nn.Linear(64, 64), nn.Tanh())))
        self.logs, self.values = [], []

    def act(self, state):
        hidden = self.body(state)
        self.logs.append(hidden.log_softmax(-1).mean(-1))
        self.values.append(hidden.mean(-1))


def rollouts():
    agent, model = Agent(), nn.Linear(64, 64)

    def step(number):
        if number % 20 < 14:
            agent.act(torch.randn(512, 64))
        else:
            model(torch.randn(8, 64)).square().mean().backward()
            model.zero_grad()
        if number % 20 == 19:
            (torch.stack(agent.logs).detach() + torch.stack(agent.values).detach()).sum()
            agent.logs.clear()
            agent.values.clear()

    return step


def test_a_pass_of_which_several_results_are_kept_needs_no_graph(tmp_path):
    (found,) = [
        one
        for one in findings_of(rollouts, tmp_path / "run.json", steps=60)
        if one.rule == "old-graphs"
    ]
    first, second = found.remedies
    assert (first.fix, first.code) == ("no_grad", "hidden = self.body(state)")
    assert first.why.endswith("keep them, and no backward pass goes through them.")
    assert (second.fix, second.patch) == ("detach", "")
    assert second.why.endswith(": detach what lines 20 and 21 keep.")
