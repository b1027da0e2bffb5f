"""idle-states, in a file that freezes nothing: a choice by what asks for gradients chooses all."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of

WIDTH, LAYERS = 192, 4
COUNT = 512
"""Bytes of a count of steps, which Adagrad has of each parameter."""


class Probe(nn.Module):
    """The features are computed without gradients."""

    def __init__(self):
        super().__init__()
        layers = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))
        self.backbone = nn.Sequential(*layers)
        self.head = nn.Linear(WIDTH, 8)

    def forward(self, x):
        with torch.no_grad():
            features = self.backbone(x)
        return self.head(features)


def probing():
    model = Probe()
    optimizer = torch.optim.Adagrad(model.parameters())

    def step(number):
        model(torch.randn(4, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_what_is_not_frozen_is_to_be_frozen_first(tmp_path):
    found = findings_of(probing, tmp_path / "run.json", is_over=True)
    (one,) = [one for one in found if one.rule == "idle-states"]
    (remedy,) = one.remedies
    assert one.bytes == LAYERS * (WIDTH * WIDTH * 4 + COUNT)
    assert (
        "no gradient comes to these: freeze them (`requires_grad_(False)`), and give" in remedy.why
    )
    assert (remedy.fix, remedy.code) == (
        "trained_parameters",
        "optimizer = torch.optim.Adagrad(model.parameters())",
    )
