"""What a forward pass alone needs, of a part of a model whose gradients nobody reads."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from memprof.loading import load
from memprof.views.examination import examine
from tests.rules.recorded import findings_of


class Block(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(192, 192), nn.LayerNorm(192), nn.GELU())


def on_blocks(*, trained):
    def program():
        blocks = nn.Sequential(*(Block() for _ in range(4))).requires_grad_(trained)
        head = nn.Linear(192, 2)
        optimizer = torch.optim.SGD(head.parameters(), 0.1)

        def step(number):
            head(blocks(torch.randn(8192, 192))).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return program


def test_what_is_left_is_there_as_long_as_a_forward_pass_alone_needs_it(tmp_path):
    """A block's input is there until its call returns, beside what its own layers make of it."""
    first = findings_of(on_blocks(trained=True), tmp_path / "run.json")[0]
    assert first.rule == "unused-gradients"
    findings_of(on_blocks(trained=False), tmp_path / "frozen.json")
    (device,) = examine(load(tmp_path / "frozen.json")).devices
    assert first.remedies[0].peak_after == pytest.approx(device.peak_allocated, rel=0.005)
