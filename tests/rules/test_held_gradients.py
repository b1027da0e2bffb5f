"""held-gradients: gradients that are done with are there while a forward pass runs."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of


def job():
    """A model whose gradients and activations are of about the same size."""
    model = nn.Sequential(*(nn.Linear(192, 192) for _ in range(4)))
    return model, torch.optim.SGD(model.parameters(), 0.1)


def fires():
    model, optimizer = job()

    def step(number):
        loss = model(torch.randn(128, 192)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def looks_alike():
    """Gradients of two batches are accumulated: those of the first must be there in the second."""
    model, optimizer = job()

    def step(number):
        model(torch.randn(128, 192)).square().mean().backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()

    return step


def test_what_it_saves_are_the_gradients_of_the_model(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    assert found.bytes == 4 * (192 * 192 * 4 + 1024)  # a bias takes two blocks of 512 bytes
    assert "gradients of the step before" in found.title
    assert found.remedies[0].fix == "set_to_none"
    assert found.remedies[0].code == "optimizer.zero_grad()"
