"""unread-buffer: a module that goes over all its buffers reads each of them."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import names


class Bases(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("sines", torch.arange(256).sin()[:, None].repeat(1, 256))
        self.linear = nn.Linear(256, 64)

    def forward(self, x):
        return sum(self.linear(table)[x] for table in self.buffers())


def training():
    model = Bases()

    def step(number):
        model(torch.randint(256, (64,))).square().mean().backward()
        model.zero_grad()

    return step


def test_nothing_is_said_of_them(tmp_path):
    assert "unread-buffer" not in names(training, tmp_path / "run.json")
