"""partly-read: where a step learns from the part, its gradient is as large as the whole result."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of

ROWS, POSITIONS, WIDTH, VALUES = 8, 64, 16, 512
WHOLE = ROWS * POSITIONS * VALUES * 4


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VALUES)

    def forward(self, x):
        logits = self.head(self.body(x))
        answer = logits[:, -1]
        return answer[:, 0] - answer[:, 1]


def training():
    model = Ranker()

    def step(number):
        model(torch.randn(ROWS, POSITIONS, WIDTH)).square().mean().backward()
        model.zero_grad()

    return step


def test_the_gradient_goes_with_the_result(tmp_path):
    (found,) = [
        one for one in findings_of(training, tmp_path / "run.json") if one.rule == "partly-read"
    ]
    assert found.bytes == WHOLE
    assert found.remedies[0].fix == "narrow_first"
    assert found.remedies[0].saves_bytes > 0.9 * WHOLE
