"""held-gradients: gradients that an optimizer by hand keeps as its momentum are no waste."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import names


def training():
    """Each backward pass adds to what the step before has left of the gradients."""
    model = nn.Sequential(*(nn.Linear(192, 192) for _ in range(4)))
    parameters = list(model.parameters())

    def step(number):
        model(torch.randn(128, 192)).square().mean().backward()
        gradients = [one.grad for one in parameters]
        with torch.no_grad():
            torch._foreach_add_(parameters, gradients, alpha=-0.01)
            torch._foreach_mul_(gradients, 0.9)

    return step


def test_gradients_that_the_program_scales_and_never_clears_are_its_own(tmp_path):
    assert "held-gradients" not in names(training, tmp_path / "run.json")
