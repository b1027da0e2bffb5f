"""double-precision: a program that compares more closely than float32 can needs it."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import names

WIDTH = 128


def training():
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 4)).double()

    def step(number):
        x = torch.randn(32, WIDTH, dtype=torch.float64)
        net(x).square().mean().backward()
        net.zero_grad()
        drift = (net(x) - net(x)).abs().max().item()
        assert drift < 1e-12

    return step


def test_what_is_to_hold_to_twelve_digits_is_computed_in_double_precision(tmp_path):
    assert "double-precision" not in names(training, tmp_path / "run.json")
