"""unused-gradients: a look at the whole model clears them, and one optimizer trains its head."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of

ROWS, WIDTH = 256, 256


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3)))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x):
        return self.head(self.backbone(x))


def trained(part, kind):
    def program():
        model = Net()
        settings = {"momentum": 0.9} if kind is torch.optim.Adam else {}
        optimizer = made(part(model), **settings)

        def step(number):
            loss = model(torch.randn(ROWS, WIDTH)).square().mean()
            model.zero_grad()
            loss.backward()
            optimizer.step()

        return step

    return program


def made(model, momentum=0.0):
    if momentum:
        return torch.optim.Adam(model.parameters(), 1e-3)
    return Descent(model)


class Descent:
    """An optimizer by hand, without states."""

    def __init__(self, model):
        self.model = model

    def step(self):
        torch._foreach_add_([p.data for p in self.model.parameters()], 0.01)


def whole(model):
    return model


def head(model):
    return model.head


def unused(program, path):
    return [one for one in findings_of(program, path) if one.rule == "unused-gradients"]


def test_what_the_optimizer_has_no_states_for_is_to_be_frozen(tmp_path):
    (found,) = unused(trained(head, torch.optim.Adam), tmp_path / "run.json")
    first, *_ = found.remedies
    assert (found.minor, found.match.modules) == (False, "`Net.backbone`")
    assert first.fix == "freeze_params"
    assert first.saves_bytes >= 3 * WIDTH * WIDTH * 4


@pytest.mark.parametrize(
    "program", [trained(whole, torch.optim.Adam), trained(head, None)], ids=["all", "by-hand"]
)
def test_what_it_may_train_is_left_alone(program, tmp_path):
    assert not unused(program, tmp_path / "run.json")
