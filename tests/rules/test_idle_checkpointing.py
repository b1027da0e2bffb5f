"""idle-checkpointing: activation checkpointing is turned on, and no block is computed again."""

from __future__ import annotations

import torch

from tests.rules.checkpointing_models import ROWS, WIDTH, Model
from tests.rules.recorded import findings_of


def learning(model):
    """What a step of a model is; ``model`` makes it."""

    def program():
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)

        def step(number):
            net(torch.randn(ROWS, WIDTH)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return program


def tuned(is_training):
    model = Model()
    model.gradient_checkpointing_enable()
    model.training = is_training
    return model


fires = learning(lambda: tuned(is_training=False))
looks_alike = learning(lambda: tuned(is_training=True))
"""Here blocks are computed again."""


def test_it_is_told_where_it_is_turned_on(tmp_path):
    found = next(
        one for one in findings_of(fires, tmp_path / "run.json") if one.rule == "idle-checkpointing"
    )
    (first,) = found.remedies
    assert not found.minor
    assert "checkpointing is turned on, and recomputes none" in found.title
    assert (first.fix, first.code) == ("checkpoint", "model.gradient_checkpointing_enable()")
    assert first.why.endswith("Call `model.train()` before the loop.")
    assert 0 < first.saves_bytes < found.bytes
