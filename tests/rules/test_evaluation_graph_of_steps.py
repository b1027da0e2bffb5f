"""evaluation-graph: of a state that is stepped on, all passes are meant, whatever buffers they take."""

from __future__ import annotations

import torch
from torch import nn

from memprof.rules.waste import evaluation_graph
from tests.rules.recorded import findings_of, peak_of

ROWS, CHANNELS, SIZE, SPIN_UP = 4, 8, 32, 8


class Closure(nn.Module):
    """Its convolutions pad by copies; every other call takes a buffer for a moment, too.

    So do operators that choose between algorithms.
    """

    def __init__(self):
        super().__init__()
        kept = {"kernel_size": 3, "padding": 1, "padding_mode": "circular"}
        self.net = nn.Sequential(
            *(nn.Conv2d(2, CHANNELS, **kept), nn.GELU()),
            *(nn.Conv2d(CHANNELS, CHANNELS, **kept), nn.GELU(), nn.GELU()),
            *(nn.Conv2d(CHANNELS, 2, **kept), nn.Tanh()),
        )
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls % 2:
            torch.empty(9 * ROWS * CHANNELS * SIZE**2).fill_(1)
        return 0.5 * self.net(x)


def slope(x, dim):
    return x.roll(-1, dim) - x.roll(1, dim)


def advected(x):
    """What of the state's own graph goes between the tensors of two passes."""
    u, v = x[:, :1], x[:, 1:]
    return u * slope(x, 3) + v * slope(x, 2)


def stepping(*, recorded):
    closure = Closure()

    def spin_up(x):
        for _ in range(SPIN_UP):
            x = x + 0.01 * (advected(x) + closure(x))
        return x

    def step(number):
        with torch.set_grad_enabled(recorded):
            x = spin_up(torch.randn(ROWS, 2, SIZE, SIZE)).detach()
        closure(x).square().mean().backward()
        closure.zero_grad()

    return step


def test_passes_that_take_more_for_a_moment_belong_to_it(tmp_path, monkeypatch):
    """Here by the bytes alone: that all of a pass goes at one moment tells nothing."""
    monkeypatch.setattr(evaluation_graph, "LEAST_SPREAD", 2.0)
    (found,) = [
        one
        for one in findings_of(lambda: stepping(recorded=True), tmp_path / "run.json")
        if one.rule == "evaluation-graph"
    ]
    findings_of(lambda: stepping(recorded=False), tmp_path / "other.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "other.json")
    assert abs(found.remedies[0].saves_bytes - saved) <= 0.15 * saved
