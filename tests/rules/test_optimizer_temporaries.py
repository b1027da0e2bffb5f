"""optimizer-temporaries: an optimizer makes its temporaries for all parameters at once."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of


def training(batch):
    """Eight layers, updated by all of their gradients at once."""
    model = nn.Sequential(*(nn.Linear(192, 192, bias=False) for _ in range(8)))
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)

    def step(number):
        model(torch.randn(batch, 192)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def fires():
    return training(batch=8)


def looks_alike():
    """The same optimizer, and so many activations that the peak is in the backward pass."""
    return training(batch=4096)


def test_the_temporaries_are_as_large_as_the_parameters_and_two_are_needed(tmp_path):
    found = next(
        one
        for one in findings_of(fires, tmp_path / "run.json")
        if one.rule == "optimizer-temporaries"
    )
    assert found.bytes == 8 * 192 * 192 * 4
    assert found.match.saving.bytes == 6 * 192 * 192 * 4
    (only,) = found.remedies
    assert only.code == "optimizer = torch.optim.Adam(model.parameters(), foreach=True)"
    assert "foreach=False" in only.patch
