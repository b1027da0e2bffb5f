"""idle-checkpointing: a function puts the model in evaluation mode, and does not put it back."""

from __future__ import annotations

import torch

from tests.rules.checkpointing_models import ROWS, WIDTH, Model
from tests.rules.recorded import findings_of


@torch.no_grad()
def measure(model):
    model.eval()
    return model(torch.randn(ROWS, WIDTH)).square().mean().item()


def measured_first():
    model = Model()
    model.gradient_checkpointing_enable()
    model.train()
    measure(model)

    def step(number):
        model(torch.randn(ROWS, WIDTH)).square().mean().backward()
        model.zero_grad()

    return step


def test_the_line_that_switches_is_named(tmp_path):
    found = next(
        one
        for one in findings_of(measured_first, tmp_path / "run.json")
        if one.rule == "idle-checkpointing"
    )
    (first,) = found.remedies
    assert (first.code, first.typed) == ("model.eval()", "model.train()")
    assert "puts it in that, and its function does not put it back" in first.why
