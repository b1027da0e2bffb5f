"""reentrant-checkpoint: its graph node keeps the function, and that reaches its own output."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.rules.recorded import findings_of

WIDTH = 64


def fires():
    layer = nn.Linear(WIDTH, WIDTH)

    def step(number):
        x = torch.randn(WIDTH, WIDTH, requires_grad=True)
        results = {"x": x * 2}

        def block(h):
            return layer(h) + results["x"].mean()

        results["out"] = checkpoint(block, x, use_reentrant=True)
        results["out"].sum().backward()
        layer.zero_grad()

    return step


def looks_alike():
    """The function closes over a scale, and what holds the output is a list that grows."""
    layer, outputs = nn.Linear(WIDTH, WIDTH), []

    def step(number):
        x = torch.randn(WIDTH, WIDTH, requires_grad=True)
        scale = x.detach().mean()

        def block(h):
            return layer(h) * scale

        out = checkpoint(block, x, use_reentrant=True)
        out.sum().backward()
        layer.zero_grad()
        outputs.append(out.detach())

    return step


def test_the_other_implementation_keeps_nothing(tmp_path):
    found, *_ = findings_of(fires, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "reentrant-checkpoint"
    assert first.fix == "break_cycle"
    assert '+        results["out"] = checkpoint(block, x, use_reentrant=False)' in first.patch
