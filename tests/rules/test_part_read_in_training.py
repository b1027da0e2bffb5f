"""partly-read: where a step learns from the part, its gradient is as large as the whole result."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of, peak_of

ROWS, POSITIONS, WIDTH, VALUES = 8, 64, 16, 512
WHOLE = ROWS * POSITIONS * VALUES * 4


class Ranker(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Linear(WIDTH, width)
        self.head = nn.Linear(width, VALUES)


class Whole(Ranker):
    def forward(self, x):
        logits = self.head(self.body(x).tanh())
        answer = logits[:, -1]
        return answer[:, 0] - answer[:, 1]


class Narrow(Ranker):
    def forward(self, x):
        last = self.body(x).tanh()[:, -1]
        answer = self.head(last)
        return answer[:, 0] - answer[:, 1]


def training(kind, width):
    torch.manual_seed(0)
    model = kind(width)

    def step(number):
        model(torch.randn(ROWS, POSITIONS, WIDTH)).square().mean().backward()
        model.zero_grad()

    return step


def partly_read(width, folder):
    """What is told of the whole, and what computing the part alone saves."""
    findings = findings_of(lambda: training(Whole, width), folder / "whole.json")
    findings_of(lambda: training(Narrow, width), folder / "narrow.json")
    saved = peak_of(folder / "whole.json") - peak_of(folder / "narrow.json")
    return [one for one in findings if one.rule == "partly-read"], saved


def test_the_gradient_goes_with_the_result(tmp_path):
    (found,), saved = partly_read(WIDTH, tmp_path)
    assert found.bytes == WHOLE
    assert found.remedies[0].fix == "narrow_first"
    assert found.remedies[0].saves_bytes == saved > 0.9 * WHOLE


def test_gradients_of_a_hidden_layer_of_that_size_stay(tmp_path):
    findings, saved = partly_read(VALUES, tmp_path)
    assert saved == 0
    assert findings == []
