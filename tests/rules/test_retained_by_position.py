"""create-graph: what only retains the graph, by its position, asks for none."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import names

WIDTH = 64


def looks_alike():
    """A graph that is kept for a second pass; models are listed."""
    models = []

    def step(number):
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
        loss = model(torch.randn(4, WIDTH)).square().mean()
        loss.backward(torch.ones_like(loss), True, False)
        loss.backward()
        models.append(model)

    return step


def test_a_second_argument_asks_for_none(tmp_path):
    assert "create-graph" not in names(looks_alike, tmp_path / "run.json")
