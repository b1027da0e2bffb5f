"""activations: what modules save for the backward pass makes much of the peak."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of


def training(batch):
    model = nn.Sequential(*(m for _ in range(8) for m in (nn.Linear(128, 128), nn.Tanh())))
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)

    def step(number):
        model(torch.randn(batch, 128)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def fires():
    return training(batch=2048)


def looks_alike():
    """As many blocks, whose parameters and their state make the peak."""
    return training(batch=16)


def test_the_outputs_of_eight_layers_are_there_at_the_peak(tmp_path):
    found = next(
        one for one in findings_of(fires, tmp_path / "run.json") if one.rule == "activations"
    )
    assert (found.match.blocks, found.bytes) == (8, 8 * 2048 * 128 * 4)
    assert [remedy.fix for remedy in found.remedies] == [
        "checkpoint",
        "mixed_precision",
        "micro_batches",
    ]
