"""unused-gradients: where a program decides that a part of its model is not trained."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        layers = (one for _ in range(4) for one in (nn.Linear(192, 192), nn.Tanh()))
        self.encoder, self.head = nn.Sequential(*layers), nn.Linear(192, 192)

    def forward(self, x):
        return self.head(self.encoder(x))


def trains_the_head_alone():
    model = Classifier()
    optimizer = torch.optim.Adam(model.head.parameters(), 0.1)

    def step(number):
        model.train()
        model.encoder.eval()
        model(torch.randn(4096, 192)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_a_part_is_to_be_frozen_where_it_is_put_into_evaluation_mode(tmp_path):
    first = findings_of(trains_the_head_alone, tmp_path / "run.json")[0]
    assert (first.rule, first.remedies[0].fix) == ("unused-gradients", "freeze_params")
    assert first.remedies[0].code == "model.encoder.eval()"
