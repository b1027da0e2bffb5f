"""copy-of-model: a second set of a model's parameters rests beside the model."""

from __future__ import annotations

import copy

import torch
from torch import nn

from tests.rules.recorded import findings_of


def job():
    model = nn.Sequential(*(nn.Linear(192, 192) for _ in range(3)), nn.Linear(192, 16))
    return model, torch.optim.SGD(model.parameters(), 0.1)


def trained(model, optimizer):
    loss = model(torch.randn(64, 192)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def fires():
    model, optimizer = job()
    best = {"loss": float("inf"), "weights": None}

    def step(number):
        loss = trained(model, optimizer)
        if number == 2:
            best["loss"] = loss
            best["weights"] = copy.deepcopy(model.state_dict())
        if number == 99:
            model.load_state_dict(best["weights"])

    return step


def looks_alike():
    """A moving average of the weights, which is computed with in each step."""
    model, optimizer = job()
    average = copy.deepcopy(model.state_dict())

    def step(number):
        trained(model, optimizer)
        for name, weight in model.state_dict().items():
            average[name].lerp_(weight, 0.01)

    return step


def test_the_copy_is_as_large_as_the_model_and_goes_to_the_host(tmp_path):
    (found,) = [
        one for one in findings_of(fires, tmp_path / "run.json") if one.rule == "copy-of-model"
    ]
    weights = 3 * (192 * 192 * 4 + 1024) + 192 * 16 * 4 + 512  # biases take blocks of 512 bytes
    assert found.bytes == weights
    assert found.minor  # it is on the host, where a copy belongs
    assert [remedy.fix for remedy in found.remedies] == ["del_ref"]
    assert found.remedies[0].code == 'best["weights"] = copy.deepcopy(model.state_dict())'
