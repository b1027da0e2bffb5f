"""collected-models: a container keeps whole models, one of each fold or trial."""

from __future__ import annotations

import torch
from torch import nn

from tests.rules.recorded import findings_of

WIDTH = 64


def fires():
    models, scores = [], []

    def step(number):
        model = nn.Linear(WIDTH, WIDTH)
        scores.append(model(torch.randn(8, WIDTH)).square().mean().item())
        models.append(model)

    return step


def looks_alike():
    """Of each model its predictions are kept."""
    predictions = []

    def step(number):
        model = nn.Linear(WIDTH, WIDTH)
        predictions.append(model(torch.randn(WIDTH, WIDTH)).detach())

    return step


def test_scores_are_to_be_kept_and_models_let_go(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "collected-models"
    assert found.bytes_per_step == (WIDTH * WIDTH + WIDTH) * 4
    assert (first.fix, first.code) == ("del_ref", "models.append(model)")
