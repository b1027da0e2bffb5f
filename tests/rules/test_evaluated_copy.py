"""evaluated-copy: a model is copied to be evaluated, which changes nothing of it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of, names, peak_of

WIDTH = 512


def score_of_a_copy(model, x):
    net = copy.deepcopy(model).eval()
    with torch.no_grad():
        return net(x).square().mean().item()


def score(model, x):
    model.eval()
    with torch.no_grad():
        value = model(x).square().mean().item()
    model.train()
    return value


def score_of_a_lighter_one(model, x):
    """The copy is changed."""
    net = copy.deepcopy(model).eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(parameter.abs() > 0.01)
        return net(x).square().mean().item()


def training(evaluate):
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(number):
        loss = model(torch.randn(2, WIDTH)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number % 4 == 3:
            evaluate(model, torch.randn(2, WIDTH))

    return step


def fires():
    return training(score_of_a_copy)


def looks_alike():
    return training(score_of_a_lighter_one)


def test_the_model_itself_is_to_be_called(tmp_path):
    found = findings_of(fires, tmp_path / "run.json")[0]
    (only,) = found.remedies
    assert (found.rule, only.fix, only.typed) == (
        "evaluated-copy",
        "evaluate_itself",
        "model.eval()",
    )
    assert only.code == "net = copy.deepcopy(model).eval()"
    findings_of(lambda: training(score), tmp_path / "itself.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "itself.json")
    assert only.saves_bytes == pytest.approx(saved, rel=0.05)


def test_a_copy_that_is_changed_is_meant(tmp_path):
    assert "evaluated-copy" not in names(looks_alike, tmp_path / "run.json")
