"""evaluation-graph: of a state that is stepped on, all passes are meant, whatever buffers they take."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of, peak_of

ROWS, WIDTH, SPIN_UP = 256, 64, 6


class Closure(nn.Module):
    """Every other call takes a buffer for a moment, as operators do that choose an algorithm."""

    def __init__(self):
        super().__init__()
        layers = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(4))
        self.layers = nn.ModuleList(layers)
        self.calls = 0

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        self.calls += 1
        if self.calls % 2:
            torch.empty(14 * ROWS * WIDTH).fill_(1)
        return x


def stepping(*, recorded):
    closure = Closure()

    def spin_up(x):
        for _ in range(SPIN_UP):
            x = x + closure(x)
        return x

    def step(number):
        with torch.set_grad_enabled(recorded):
            x = spin_up(torch.randn(ROWS, WIDTH)).detach()
        closure(x).square().mean().backward()
        closure.zero_grad()

    return step


def test_passes_that_take_more_for_a_moment_belong_to_it(tmp_path):
    (found,) = [
        one
        for one in findings_of(lambda: stepping(recorded=True), tmp_path / "run.json")
        if one.rule == "evaluation-graph"
    ]
    findings_of(lambda: stepping(recorded=False), tmp_path / "other.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "other.json")
    assert abs(found.remedies[0].saves_bytes - saved) <= 0.15 * saved
