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


def ensemble(members):
    """So many members are trained one after the other, each for some steps, and kept."""
    kept = []

    def step(number):
        if number % 8 == 0 and len(kept) < members:
            kept.append(nn.Linear(WIDTH, WIDTH))

    return step


def five():
    return ensemble(5)


def eight():
    return ensemble(8)


def test_five_models_are_an_ensemble_or_folds_and_eight_pile_up(tmp_path):
    assert not any(one.bytes_per_step for one in findings_of(five, tmp_path / "a.json", steps=40))
    assert findings_of(eight, tmp_path / "b.json", steps=64)[0].rule == "collected-models"


def trained():
    models = []

    def step(number):
        model = nn.Linear(WIDTH, WIDTH, bias=False)
        model(torch.randn(8, WIDTH)).square().mean().backward()
        models.append(model)

    return step


def test_gradients_are_counted_with_the_models_that_have_them(tmp_path):
    found, *_ = findings_of(trained, tmp_path / "run.json", steps=24)
    assert found.rule == "collected-models"
    assert found.bytes_per_step == 2 * WIDTH * WIDTH * 4
