"""create-graph: the setting is given by its position."""

from __future__ import annotations

import warnings

import torch
from torch import nn

from tests.rules.recorded import findings_of_fork

WIDTH = 64


def fires():
    def step(number):
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
        loss = model(torch.randn(4, WIDTH)).square().mean()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loss.backward(torch.ones_like(loss), True, True)

    return step


def test_the_third_argument_asks_for_a_graph(tmp_path):
    found, *_ = findings_of_fork(fires, tmp_path / "run.json")
    first, second = found.remedies[:2]
    assert found.rule == first.rule == "create-graph"
    assert (first.fix, second.fix) == ("autograd_grad", "set_to_none")
    assert first.code == "loss.backward(torch.ones_like(loss), True, True)"
