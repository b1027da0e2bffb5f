"""unused-gradients: one parameter before frozen layers asks for the graph of all of them."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of


class Tokens(nn.Module):
    """A model of frozen layers, before which it adds a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.token, self.head = nn.Parameter(torch.zeros(192)), nn.Linear(192, 192)
        layers = [layer for _ in range(4) for layer in (nn.Linear(192, 192), nn.Tanh())]
        self.body = nn.Sequential(*layers)
        self.body.requires_grad_(False)

    def forward(self, x):
        return self.head(self.body(x + self.token))


def freezes_the_layers():
    model = Tokens()
    optimizer = torch.optim.Adam(model.head.parameters(), 0.1)

    def step(number):
        optimizer.zero_grad()
        model(torch.randn(4096, 192)).square().mean().backward()
        optimizer.step()

    return step


def test_one_parameter_before_frozen_layers_keeps_the_graph_of_all_of_them(tmp_path):
    found = findings_of(freezes_the_layers, tmp_path / "run.json")[0]
    assert (found.rule, found.minor) == ("unused-gradients", False)
    own = "the parameters that `Tokens` has of its own"
    assert found.title.endswith(
        f"are the graph and gradients of {own}, which no optimizer here trains"
    )
    assert found.remedies[0].fix == "freeze_params"
    assert found.remedies[0].saves_bytes > found.bytes / 2
